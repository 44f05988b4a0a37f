/* SPDX-License-Identifier: BSD-2-Clause */
/* test_faults.c, where senders WRITE what is large. */
#define SIDE_RENDEZVOUS XR_RENDEZVOUS_WRITE
#include "test_faults.c"
