/* SPDX-License-Identifier: BSD-2-Clause */
/* A forked child that does not outlive its test, however the test ends. */
#ifndef XR_TEST_CHILD_H
#define XR_TEST_CHILD_H

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

static inline pid_t child_fork(void)
{
	pid_t parent = getpid(), pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* it may have ended before it could be watched */
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

#endif
