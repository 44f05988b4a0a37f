/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COPIES_H
#define COPIES_H

/* Lines of JSON; 0 or the exit status. */
int copies(void);

#endif
