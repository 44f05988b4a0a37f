/* SPDX-License-Identifier: BSD-2-Clause */
/* Before the sources of the module: what they allocate is a part of the state. */
#ifndef MODEL_POOL_H
#define MODEL_POOL_H

#include <stdlib.h>

void *model_calloc(size_t n, size_t size);
void *model_malloc(size_t n);
void *model_realloc(void *p, size_t n);
void model_free(void *p);

#define calloc	model_calloc
#define malloc	model_malloc
#define realloc	model_realloc
#define free	model_free

#endif
