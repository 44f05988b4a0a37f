/* SPDX-License-Identifier: BSD-2-Clause */
/* The program's own SIGSEGV and SIGBUS are its own, before and after copies that failed. */
#include "xrfault.h"

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static sigjmp_buf back;
static volatile sig_atomic_t entered, depth, on_alt, usr1_blocked, self_blocked, code;
static void *volatile address;
static volatile long frame;
static char *alt;
#define ALT	(64 << 10)

static void note(siginfo_t *info, void *context)
{
	char here;
	sigset_t now;

	entered++;
	code = info->si_code;
	address = info->si_addr;
	on_alt = &here >= alt && &here < alt + ALT;
	sigprocmask(SIG_BLOCK, NULL, &now);
	usr1_blocked = sigismember(&now, SIGUSR1);
	self_blocked = sigismember(&now, SIGSEGV);
	frame = (char *)context - (char *)__builtin_frame_address(0);
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	note(info, context);
	siglongjmp(back, 1);
}

static void on_sent(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	note(info, context);
}

/* Faults in itself once, and so enters itself. */
static void on_nested(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	note(info, context);
	if (++depth == 1)
		*(volatile char *)edge = 1;
	siglongjmp(back, 1);
}

static void set(int sig, void (*fn)(int, siginfo_t *, void *), int flags)
{
	struct sigaction a = { .sa_sigaction = fn, .sa_flags = SA_SIGINFO | flags }, seen;

	sigaddset(&a.sa_mask, SIGUSR1);
	IS(sigaction(sig, &a, NULL), 0);
	IS(sigaction(sig, NULL, &seen), 0);
	IS(seen.sa_sigaction == fn, 1);
	IS(seen.sa_flags & ~0x04000000, a.sa_flags);	/* but for SA_RESTORER */
	IS(sigismember(&seen.sa_mask, SIGUSR1), 1);
	IS(sigismember(&seen.sa_mask, SIGSEGV), 0);
}

static void set_default(int sig)
{
	struct sigaction a = { .sa_handler = SIG_DFL }, seen;

	IS(sigaction(sig, &a, NULL), 0);
	IS(sigaction(sig, NULL, &seen), 0);
	IS(seen.sa_handler == SIG_DFL, 1);
	IS(seen.sa_flags & ~0x04000000, 0);
}

/* A call with a bad address; no handler is entered. */
static void call_fails(void)
{
	int was = entered;

	stream_send(64);
	FAILS(recv(fd_b, edge, 64, 0), EFAULT);
	FAILS(recv(fd_b, edge - 1, 64, 0), EFAULT);
	FAILS(send(fd_a, edge, 64, 0), EFAULT);
	stream_take(64);
	IS(entered, was);
}

static void own_fault(char *p)
{
	int was = entered;

	if (!sigsetjmp(back, 1))
		*(volatile char *)p = 1;
	IS(entered, was + 1);
	IS(address == p, 1);
	IS(code > 0, 1);
	IS(usr1_blocked, 1);
}

static void handlers(void)
{
	stack_t st = { .ss_size = ALT };
	char *cut = NULL;
	volatile int i;

	for (i = 0; i < nbad; i++)
		if (!strcmp(bad[i].name, "truncated file"))
			cut = bad[i].p;
	alt = st.ss_sp = malloc(ALT);
	IS(sigaltstack(&st, NULL), 0);
	set_default(SIGSEGV);
	set_default(SIGBUS);
	call_fails();

	now_at = "handler";
	set(SIGSEGV, on_fault, 0);
	set(SIGBUS, on_fault, 0);
	for (i = 0; i < 3; i++) {
		call_fails();
		own_fault(edge + 8);
		IS(on_alt, 0);
		IS(self_blocked, 1);
		own_fault(cut + 4);
	}
	printf("frame %ld\n", frame);
	now_at = "alternate stack";
	set(SIGSEGV, on_fault, SA_ONSTACK);
	call_fails();
	own_fault(edge + 9);
	IS(on_alt, 1);
	now_at = "nested";
	set(SIGSEGV, on_nested, SA_NODEFER);
	call_fails();
	i = entered;
	depth = 0;
	if (!sigsetjmp(back, 1))
		*(volatile char *)(edge + 16) = 1;
	IS(entered, i + 2);
	IS(self_blocked, 0);
	call_fails();
}

static void sent(void)
{
	struct sigaction seen;

	now_at = "sent";
	set(SIGSEGV, on_sent, 0);
	IS(kill(getpid(), SIGSEGV), 0);
	IS(code, SI_USER);
	IS(raise(SIGSEGV), 0);
	IS(code, SI_TKILL);
	call_fails();
	now_at = "used once";
	set(SIGSEGV, on_sent, SA_RESETHAND);
	call_fails();
	IS(sigaction(SIGSEGV, NULL, &seen), 0);
	IS(seen.sa_sigaction == on_sent, 1);
	IS(raise(SIGSEGV), 0);
	IS(sigaction(SIGSEGV, NULL, &seen), 0);
	IS(seen.sa_handler == SIG_DFL, 1);
	call_fails();
	now_at = "ignored";
	IS(signal(SIGSEGV, SIG_IGN) == SIG_DFL, 1);
	IS(raise(SIGSEGV), 0);
	IS(signal(SIGSEGV, SIG_DFL) == SIG_IGN, 1);
	call_fails();
}

/* How a child ends that does this. */
static int fate(void (*fn)(void))
{
	pid_t pid = fork();
	int status = -1;

	if (!pid) {
		alarm(10);
		fn();
		_exit(0);
	}
	IS(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void by_write(void)
{
	*(volatile char *)edge = 1;
}

static void by_kill(void)
{
	kill(getpid(), SIGSEGV);
	pause();
}

static void by_raise(void)
{
	raise(SIGBUS);
	pause();
}

static void by_nobody(void)
{
	*(volatile char *)0xdead00000000dead = 1;
}

/* The handler of fault handlers that do not mean to stay: default, and again. */
static void give_up(int sig, siginfo_t *info, void *context)
{
	(void)info;
	(void)context;
	signal(sig, SIG_DFL);
}

static void by_handler(void)
{
	struct sigaction a = { .sa_sigaction = give_up, .sa_flags = SA_SIGINFO };

	sigaction(SIGSEGV, &a, NULL);
	*(volatile char *)edge = 1;
}

static void by_exec(void)
{
	execl("/proc/self/exe", "xrfault", "child-default", NULL);
}

static void by_vfork(void)
{
	pid_t pid = vfork();
	int status;

	if (!pid) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile char *)edge = 1;
		_exit(1);
	}
	waitpid(pid, &status, 0);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
		_exit(3);
	/* and the parent is as it was */
	failures = 0;
	call_fails();
	_exit(failures != 0);
}

static void ends(void)
{
	now_at = "ends";
	set_default(SIGSEGV);
	set_default(SIGBUS);
	IS(fate(by_write), -SIGSEGV);
	IS(fate(by_kill), -SIGSEGV);
	IS(fate(by_raise), -SIGBUS);
	IS(fate(by_nobody), -SIGSEGV);
	IS(fate(by_handler), -SIGSEGV);
	IS(fate(by_exec), 0);
	IS(fate(by_vfork), 0);
	call_fails();
}

int signal_child(const char *what)
{
	struct sigaction seen;

	if (!strcmp(what, "default")) {
		sigaction(SIGSEGV, NULL, &seen);
		return seen.sa_handler != SIG_DFL;
	}
	return 2;
}

void signal_cases(void)
{
	handlers();
	sent();
	ends();
}
