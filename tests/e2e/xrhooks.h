/* SPDX-License-Identifier: BSD-2-Clause */
/* One call of each hook; see xrhooks.c. */
#ifndef XRHOOKS_H
#define XRHOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define TEXT 100

/* f is the function by this name, as the program's own calls find it. */
struct hook {
	const char *name;
	void (*check)(void *f);
};

extern const struct hook hooks_io[], hooks_fd[], hooks_open[], hooks_process[], hooks_signal[];

extern bool lifts;	    /* connections move to a fabric, and calls that are carried leave the kernel socket alone */
extern int conn;	    /* the connection; its other end is an echo */
extern const char *program; /* this one */
extern char text[TEXT + 1]; /* what was said last */

_Noreturn void failed(const char *file, int line, const char *what);
/* f, by the type that it has */
#define FUNCTION(ret, args) ret(*g) args = (ret(*) args)f

#define MUST(x) ((x) ? (void)0 : failed(__FILE__, __LINE__, #x))

/* LIBC(f): libc's own f, round the hook */
void *libc_symbol(const char *name);
#define LIBC(f) ((__typeof__(&(f)))libc_symbol(#f))

void new_text(void);		/* what is said next */
void no_answer(void);		/* ... and the echo keeps to itself */
void said_elsewhere(void);	/* somebody else says one */
void pending(void);		/* new text waits to be read from the connection */
void is_text(const void *got);	/* what was read is that */
void echoed(void);		/* what was written comes back */
void turns(int n);		/* both, by other calls */
void dial(void);		/* a connection that has been used, and is where it is to be */
void used(void);		/* the same of one that exists */
int listener(int *port);
void be_called(int port);	/* the echo connects to there */
void ended(void);		/* the other end has seen the orderly end of the connection, and all before it */
long kernel_bytes(void);	/* what has passed through the kernel socket so far */
void stayed(long before);	/* nothing since, where calls are carried */
void passed(long before);	/* something has */
int dial_port(void);		/* where the echo listens, for who connects by itself */
pid_t child(void);		/* a fork that leads from here on */
int status(pid_t pid);		/* the exit status of that, or of another child */

#endif
