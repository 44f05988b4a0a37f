/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The oracle: random operations on TCP sockets, once on plain kernel TCP and once under the
 * preload object, and what came out of each compared.
 *
 * A script is a list of operations, each done by one of two processes (or a child forked by one
 * of them).  They take turns: one operation at a time, the next begins when it has returned, so
 * what it returns does not depend on time.  A call that blocks runs in a thread of its own.
 *
 *	generate.c	proposes operations		model.c		says which of them have one outcome
 *	pair.c		two processes, one script	actor*.c	what they do
 *	legal.c		compares			shrink.c	makes a failing script small
 *	text.c		scripts as text
 */
#ifndef ORACLE_H
#define ORACLE_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define OPS_MAX		512
#define SLOTS		8	/* descriptors of a process that a script can name */
#define EPS		3	/* epoll descriptors */
#define CONNS		3
#define THREADS		3	/* blocked calls of a process at a time */
#define ARGS		5
#define EXTRA		12

/* Who does an operation.  CHILD_A is forked by A. */
enum side { A, B, CHILD_A, CHILD_B, SIDES, BOTH = SIDES };

/*
 * X(name, number of arguments, their names and kinds)
 * kinds: d number, x hexadecimal, m MSG_ flags, p poll events, e epoll events, s set of slots,
 * c name of a call (of the table of the kind)
 */
#define OP_TABLE(X) \
	X(CONNECT, "connect", "slot:d conn:d family:d flags:x") \
	X(ACCEPT, "accept", "slot:d conn:d flags:x call:d") \
	X(WARM, "warm", "conn:d turns:d") \
	X(SEND, "send", "slot:d call:d n:d flags:m iov:d") \
	X(RECV, "recv", "slot:d call:d n:d flags:m iov:d") \
	X(BULK, "bulk", "conn:d from:d n:d tx:d rx:d") \
	X(DUPLEX, "duplex", "conn:d n:d tx:d rx:d") \
	X(FILL, "fill", "conn:d from:d chunk:d") \
	X(URGENT, "urgent", "conn:d from:d before:d after:d get:d") \
	X(SHUTDOWN, "shutdown", "slot:d how:d") \
	X(CLOSE, "close", "slot:d") \
	X(DUP, "dup", "slot:d call:d to:d") \
	X(NONBLOCK, "nonblock", "slot:d on:d call:d") \
	X(SETOPT, "setopt", "slot:d option:d value:d") \
	X(GETOPT, "getopt", "slot:d option:d") \
	X(IOCTL, "ioctl", "slot:d call:d") \
	X(NAME, "name", "slot:d peer:d") \
	X(POLL, "poll", "call:d slots:s events:p timeout:d") \
	X(SELECT, "select", "call:d rd:s wr:s ex:s timeout:d") \
	X(EPCREATE, "epcreate", "ep:d") \
	X(EPCTL, "epctl", "ep:d call:d slot:d events:e") \
	X(EPNEST, "epnest", "ep:d call:d inner:d") \
	X(EPWAIT, "epwait", "ep:d call:d max:d timeout:d") \
	X(EPCLOSE, "epclose", "ep:d") \
	X(BAD, "bad", "slot:d call:d") \
	X(JOIN, "join", "thread:d") \
	X(SIGNAL, "signal", "thread:d restart:d") \
	X(FORK, "fork", "") \
	X(EXIT, "exit", "how:d") \
	X(DRAIN, "drain", "") \
	X(END, "end", "")

enum kind {
#define X(sym, name, args) OP_##sym,
	OP_TABLE(X)
#undef X
	OP_KINDS
};

struct op {
	uint8_t kind, side;
	uint8_t thread;		/* 0: the process itself; else this thread, and the turn passes on */
	uint8_t both;		/* EXIT: the child goes, its parent waits for it */
	int32_t arg[ARGS];
};

struct script {
	uint64_t seed;
	uint32_t n;
	uint32_t warm;		/* turns before the script in mode MID */
	struct op op[OPS_MAX];
};

/* What an operation came to. */
struct res {
	int64_t ret;
	int32_t err;		/* errno when ret < 0 */
	int32_t nextra;
	int32_t sigpipe, sigusr;	/* signals that arrived meanwhile */
	int32_t bad;		/* 1 + offset of the first wrong byte */
	int32_t done;
	int64_t extra[EXTRA];
};

enum mode {
	PLAIN,	/* kernel TCP: the specification */
	UP,	/* under the preload object; connections are on shm before the script goes on */
	MID,	/* the same, but the upgrade falls somewhere within the script */
	MODES
};

/* The stream's bytes: any range of up to 4 MiB + is contiguous in the table. */
#define PAT_PERIOD	1048583u	/* a prime */
#define PAT_MAX		(4 << 20)
#define PAT_SIZE	(PAT_PERIOD + PAT_MAX + 65536u)

/* Memory that the processes of a pair and their conductor share. */
struct shared {
	_Atomic uint32_t go;		/* number of the case; futex of the actors */
	_Atomic uint32_t done;		/* actors that have finished it; futex of the conductor */
	_Atomic uint32_t turn;		/* index of the operation whose turn it is */
	_Atomic uint32_t sleepers;	/* actors asleep on turn */
	_Atomic uint32_t both;		/* of an operation of both sides: finished parts */
	_Atomic int32_t warm_round;	/* -1: no more */
	_Atomic uint32_t handled;	/* signals, by any thread */
	_Atomic uint32_t quit;
	_Atomic uint32_t mode;
	_Atomic uint32_t settled;	/* operations that had to wait for bytes to arrive */
	_Atomic uint32_t late;		/* waits whose time was nearly over before what is to end them was done */
	_Atomic int32_t pid[SIDES];
	_Atomic int32_t tid[SIDES][THREADS + 1];
	uint16_t port[2][2];		/* of A and B; IPv4, IPv6 */
	_Atomic uint64_t upgraded[2], retreated[2];	/* of A and B, so far */
	/* bytes of each connection; index 1 of the second: those sent by its accepting end */
	_Atomic uint64_t sent[CONNS][2], rcvd[CONNS][2];
	struct script script;
	struct res res[OPS_MAX][2];	/* [1]: of B, in operations of both */
	uint8_t pattern[PAT_SIZE];
};

/* text.c */
extern const char *const op_name[OP_KINDS], *const op_args[OP_KINDS];
int op_nargs(enum kind k);
void op_print(FILE *f, const struct op *o);
int script_read(FILE *f, struct script *s, const char *path);
void script_print(FILE *f, const struct script *s);
void res_print(FILE *f, const struct res *r);

/* model.c: the state that a script has led to, as far as it matters */
#define SAFE	(32 << 10)	/* bytes under way that any TCP takes at once */

/*
 * An epoll file that a child has from its parent.  Not used: bytes that lie unread in shared
 * memory when the child first uses it show in its sets only when more come.
 */
#define EP_INHERITED	2

struct m_file {			/* an open socket */
	int8_t conn, end;	/* -1: none */
};
struct m_end {
	int32_t avail;		/* bytes to read */
	uint8_t fin, shut_rd, shut_wr, closed, reset;
	uint8_t nonblock;
	uint8_t dirty;		/* what is left to read is not known any more */
	int32_t lowat, rcvtimeo, sndtimeo;
	int8_t linger;
	int8_t reader;		/* 1 + side of who is blocked in a read */
	int32_t target, want;
	int8_t peeks;
};
struct m_conn {
	uint8_t used, connected;	/* 1: connecting end made; 2: accepted */
	uint8_t connector;		/* side */
	struct m_end end[2];
};
struct model {
	struct m_conn conn[CONNS];
	struct m_file slot[SIDES][SLOTS];
	uint8_t ep[SIDES][EPS];
	uint8_t thread[SIDES][THREADS + 1];	/* busy: OP_ kind + 1 */
	uint8_t thread_conn[SIDES][THREADS + 1], thread_end[SIDES][THREADS + 1];
	uint8_t forked[2];
	uint8_t ended[2];
	uint8_t orphans[SIDES];	/* bit per connection, see step_dup */
};
void model_init(struct model *m);
/* Has the operation one outcome in this state?  Then it is applied, and 1 returned. */
int model_step(struct model *m, const struct op *o);
int model_accepts(const struct script *s);
int model_refs(const struct model *m, int conn, int end);

/* generate.c */
uint64_t rnd64(uint64_t *s);
void generate(struct script *s, uint64_t seed);

/* legal.c: NULL, or what is different first; op and part say where. */
const char *compare(const struct script *s, const struct shared *plain, const struct shared *other,
		    uint32_t *op, int *part);
extern uint64_t legal_used[];
void legal_print(FILE *f);

/* pair.c */
struct pair {
	struct shared *sh;
	int memfd;
	int preload;
	pid_t pid[2];
	int cpu;
	uint64_t respawned;
	uint32_t stuck;		/* operation at which the last case hung or lost a process */
	uint64_t upgraded, retreated;	/* by both sides, before the last run */
};
enum { PAIR_OK, PAIR_HANG, PAIR_DIED };
void pair_init(struct pair *p, int preload, int cpu);
/*
 * Runs the script, and once more where the machine was too slow for a wait of it; 0, or PAIR_HANG or PAIR_DIED with
 * the processes replaced by new ones.
 */
int pair_run(struct pair *p, const struct script *s, enum mode mode, unsigned int patience_ms);
void pair_stop(struct pair *p);

/* actor.c */
int actor_main(int side, int memfd);

/* shrink.c */
void shrink(struct pair *plain, struct pair *other, struct script *s, enum mode mode,
	    const char *why, int kind);
/* Runs both and compares: 0 the same, 1 different (a sentence in *why), -1 no valid case. */
int differs(struct pair *plain, struct pair *other, const struct script *s, enum mode mode,
	    unsigned int patience_ms, const char **why, uint32_t *op, int *part);

#endif
