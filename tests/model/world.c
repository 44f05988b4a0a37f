/* SPDX-License-Identifier: BSD-2-Clause */
/* Each end is a coroutine; a state is the world and the live part of the two stacks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include "fabric.h"
#include "world.h"

struct world W __attribute__((aligned(128)));
int cur;
int coarse, plain, tso, lag, hurried, handover;
const char *wrong;

static char stack[2][STACK] __attribute__((aligned(128)));
static jmp_buf back;			/* to whoever resumed the end */
static ucontext_t boot, boot_back;

void wrong_if(int cond, const char *what)
{
	if (cond && !wrong)
		wrong = what;
}

/* ---- coroutines ------------------------------------------------------------- */

/* What sim_point's callees may use below its frame; nothing of it is live. */
#define RED	128

static __attribute__((noinline)) void leave(struct side *s)
{
	if (_setjmp(s->at))
		return;
	s->sp = (char *)__builtin_frame_address(0) - RED;
	_longjmp(back, 1);
}

void model_yield(void)
{
	leave(&W.side[cur]);
}

static int shared(const volatile void *p)
{
	const char *c = (const char *)(uintptr_t)p, *b = (const char *)&W.block[0][0];

	if (hosts && c >= (const char *)X.block && c < (const char *)X.block + sizeof(X.block))
		return 1;
	return c >= b && c < b + sizeof(W.block);
}

void model_point(const volatile void *p)
{
	if (!coarse && !plain && shared(p))
		model_yield();
}

/* ---- stores, as x86 orders them ------------------------------------------------ */

static void store_now(volatile void *p, uint64_t v, uint64_t size)
{
	switch (size) {
	case 1:
		*(volatile uint8_t *)p = (uint8_t)v;
		break;
	case 2:
		*(volatile uint16_t *)p = (uint16_t)v;
		break;
	case 4:
		*(volatile uint32_t *)p = (uint32_t)v;
		break;
	case 8:
		*(volatile uint64_t *)p = v;
		break;
	default:
		abort();
	}
}

void world_flush_one(int e)
{
	struct side *s = &W.side[e];

	store_now(s->pending[0].p, s->pending[0].v, s->pending[0].size);
	s->npending--;
	memmove(s->pending, s->pending + 1, s->npending * sizeof(s->pending[0]));
	memset(&s->pending[s->npending], 0, sizeof(s->pending[0]));
}

void world_flush(int e)
{
	while (W.side[e].npending)
		world_flush_one(e);
}

void model_barrier(void)
{
	/* what was loaded since the store may be old by now */
	if (!coarse && W.side[cur].npending)
		model_yield();
	world_flush(cur);
}

void model_store(volatile void *p, uint64_t v, size_t size)
{
	struct side *s = &W.side[cur];

	if (!tso || coarse || !shared(p)) {
		model_point(p);
		store_now(p, v, size);
		return;
	}
	if (s->npending == PENDING)
		world_flush_one(cur);
	s->pending[s->npending++] = (struct pending){ p, v, size };
}

uint64_t model_load(const volatile void *p, uint64_t v, size_t size)
{
	const struct side *s = &W.side[cur];
	int i;

	(void)size;
	for (i = s->npending - 1; i >= 0; i--)
		if (s->pending[i].p == p)
			return s->pending[i].v;
	return v;
}

static void coroutine(void)
{
	for (;;) {
		struct side *s = &W.side[cur];

		s->act = ACT_NONE;
		s->in_call = 0;
		leave(s);
		end_act(cur, (enum act)W.side[cur].act);
		model_barrier();
		end_settle(cur);
	}
}

void world_resume(int e)
{
	cur = e;
	W.side[e].blocked = 0;
	if (!_setjmp(back))
		_longjmp(W.side[e].at, 1);
}

void world_begin(int e, enum act a)
{
	struct side *s = &W.side[e];

	/* what earlier calls left on the stack is no part of the state */
	memset(stack[e], 0, (size_t)(s->sp - stack[e]));
	s->act = (uint8_t)a;
	s->in_call = 1;
	world_resume(e);
}

void world_abandon(int e)
{
	struct side *s = &W.side[e];

	world_flush(e);
	memset(stack[e], 0, STACK);
	memset(&s->at, 0, sizeof(s->at));
	s->sp = stack[e] + STACK;
	s->in_call = s->blocked = s->act = 0;
}

void model_block(uint32_t events, int bell)
{
	struct side *s = &W.side[cur];

	s->events = (uint16_t)events;
	s->blocked = bell ? 2 : 1;
	leave(s);
	W.side[cur].events = 0;
}

int world_may_run(int e)
{
	struct side *s = &W.side[e];

	if (!s->in_call)
		return 0;
	if (!s->blocked)
		return 1;
	return (s->blocked == 2 && s->bell) || (kernel_poll(e) & s->events);
}

void world_init(void)
{
	int e;

	memset(&W, 0, sizeof(W));
	memset(stack, 0, sizeof(stack));
	for (e = 0; e < 2; e++) {
		cur = e;
		getcontext(&boot);
		boot.uc_stack.ss_sp = stack[e];
		boot.uc_stack.ss_size = STACK;
		boot.uc_link = &boot_back;
		makecontext(&boot, coroutine, 0);
		if (!_setjmp(back))
			setcontext(&boot);
	}
	end_start();
	fabric_start();
}

/* ---- states ------------------------------------------------------------------- */

struct snapshot {
	struct world w;
	struct xr_flow_slab slab;
	struct xr_upgrade up[2];
	struct fabric x;
	char stack[2][STACK];
};

struct snapshot *snapshot_new(void)
{
	struct snapshot *s = NULL;

	/* only what is touched takes memory */
	if (posix_memalign((void **)&s, 4096, sizeof(*s)))
		abort();
	return s;
}

static size_t live(const struct side *s, int e)
{
	return (size_t)(stack[e] + STACK - s->sp);
}

void snapshot_save(struct snapshot *s)
{
	int e;

	s->w = W;
	if (hosts)
		s->x = X;
	s->slab = xr_slab;
	memcpy(s->up, xr_up_table, sizeof(s->up));
	for (e = 0; e < 2; e++)
		memcpy(s->stack[e], W.side[e].sp, live(&W.side[e], e));
}

void snapshot_load(const struct snapshot *s)
{
	int e;

	W = s->w;
	if (hosts)
		X = s->x;
	xr_slab = s->slab;
	memcpy(xr_up_table, s->up, sizeof(s->up));
	for (e = 0; e < 2; e++)
		memcpy(W.side[e].sp, s->stack[e], live(&W.side[e], e));
}

static uint64_t hash(uint64_t h, const void *p, size_t n)
{
	const uint64_t *w = p;
	uint64_t a = h, b = h ^ 0x9e3779b97f4a7c15ull;
	size_t i;

	/* everything that is hashed is made of 8-byte words */
	for (i = 0; i + 2 <= n / 8; i += 2) {
		a = (a ^ w[i]) * 0xff51afd7ed558ccdull;
		b = (b ^ w[i + 1]) * 0xc4ceb9fe1a85ec53ull;
		a ^= a >> 32;
		b ^= b >> 29;
	}
	if (i < n / 8)
		a = (a ^ w[i]) * 0xff51afd7ed558ccdull;
	a ^= b * 0x9e3779b97f4a7c15ull;
	a ^= a >> 31;
	return a * 0xbf58476d1ce4e5b9ull;
}

uint64_t world_hash(void)
{
	uint64_t h = hash(1, &W, sizeof(W));
	int e;

	if (hosts)
		h = hash(h, &X, sizeof(X));
	h = hash(h, &xr_slab, sizeof(xr_slab));
	h = hash(h, xr_up_table, sizeof(struct xr_upgrade) * 2);
	for (e = 0; e < 2; e++)
		h = hash(h, W.side[e].sp, live(&W.side[e], e));
	return h ? h : 1;
}
