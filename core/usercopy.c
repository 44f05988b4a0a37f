/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The copies of usercopy.h, in assembly: the compiler must not put anything else into the
 * range, and the handler must know which registers hold the program's side.
 */
#include "usercopy.h"
#include <errno.h>
#include <signal.h>
#include <ucontext.h>

/* The assembly says it in numbers. */
_Static_assert(EFAULT == 14, "returned by the landing below");

extern const char xr_usercopy_begin[], xr_usercopy_end[], xr_usercopy_fault[];

#if defined(__x86_64__)

/*
 * rdi: to, rsi: from, rdx: bytes.  r8 and rdx say the program's side till the end.  No stack
 * is used: the landing returns for any of it.  Ends are copied by moves that overlap; no
 * byte outside of either buffer is touched.  A plain loop for all that is large: measured, it
 * is as fast as what libc does as soon as the bytes are not in the nearest cache, and they
 * come from another core; see copy.h for where libc is much slower.
 */
__asm__(
	"	.text\n"
	"	.globl	xr_copy_to_user, xr_copy_from_user\n"
	"	.hidden	xr_copy_to_user, xr_copy_from_user\n"
	"	.globl	xr_usercopy_begin, xr_usercopy_end, xr_usercopy_fault\n"
	"	.hidden	xr_usercopy_begin, xr_usercopy_end, xr_usercopy_fault\n"
	"	.type	xr_copy_from_user, @function\n"
	"	.type	xr_copy_to_user, @function\n"
	"	.p2align 6\n"
	"xr_usercopy_begin:\n"
	"xr_copy_from_user:\n"
	"	.cfi_startproc\n"
	"	endbr64\n"
	"	movq	%rsi, %r8\n"
	"	jmp	1f\n"
	"	.cfi_endproc\n"
	"	.size	xr_copy_from_user, . - xr_copy_from_user\n"
	"	.p2align 4\n"
	"xr_copy_to_user:\n"
	"	.cfi_startproc\n"
	"	endbr64\n"
	"	movq	%rdi, %r8\n"
	"1:	cmpq	$16, %rdx\n"
	"	jb	5f\n"
	"	cmpq	$32, %rdx\n"
	"	ja	2f\n"
	"	movups	(%rsi), %xmm0\n"
	"	movups	-16(%rsi,%rdx), %xmm1\n"
	"	movups	%xmm0, (%rdi)\n"
	"	movups	%xmm1, -16(%rdi,%rdx)\n"
	"	xorl	%eax, %eax\n"
	"	ret\n"
	"2:	cmpq	$64, %rdx\n"
	"	ja	3f\n"
	"	movups	(%rsi), %xmm0\n"
	"	movups	16(%rsi), %xmm1\n"
	"	movups	-32(%rsi,%rdx), %xmm2\n"
	"	movups	-16(%rsi,%rdx), %xmm3\n"
	"	movups	%xmm0, (%rdi)\n"
	"	movups	%xmm1, 16(%rdi)\n"
	"	movups	%xmm2, -32(%rdi,%rdx)\n"
	"	movups	%xmm3, -16(%rdi,%rdx)\n"
	"	xorl	%eax, %eax\n"
	"	ret\n"
	"3:	movups	(%rsi), %xmm0\n"
	"	movups	-64(%rsi,%rdx), %xmm4\n"
	"	movups	-48(%rsi,%rdx), %xmm5\n"
	"	movups	-32(%rsi,%rdx), %xmm6\n"
	"	movups	-16(%rsi,%rdx), %xmm7\n"
	"	cmpq	$128, %rdx\n"
	"	ja	4f\n"
	"	movups	16(%rsi), %xmm1\n"
	"	movups	32(%rsi), %xmm2\n"
	"	movups	48(%rsi), %xmm3\n"
	"	movups	%xmm0, (%rdi)\n"
	"	movups	%xmm1, 16(%rdi)\n"
	"	movups	%xmm2, 32(%rdi)\n"
	"	movups	%xmm3, 48(%rdi)\n"
	"	movups	%xmm4, -64(%rdi,%rdx)\n"
	"	movups	%xmm5, -48(%rdi,%rdx)\n"
	"	movups	%xmm6, -32(%rdi,%rdx)\n"
	"	movups	%xmm7, -16(%rdi,%rdx)\n"
	"	xorl	%eax, %eax\n"
	"	ret\n"
	"4:	leaq	-64(%rdi,%rdx), %r9\n"
	"	movups	%xmm0, (%rdi)\n"
	"	movq	%rdi, %rcx\n"
	"	andl	$15, %ecx\n"
	"	subq	$16, %rcx\n"
	"	subq	%rcx, %rsi\n"
	"	subq	%rcx, %rdi\n"
	"	.p2align 4\n"
	"41:	movups	(%rsi), %xmm0\n"
	"	movups	16(%rsi), %xmm1\n"
	"	movups	32(%rsi), %xmm2\n"
	"	movups	48(%rsi), %xmm3\n"
	"	addq	$64, %rsi\n"
	"	movaps	%xmm0, (%rdi)\n"
	"	movaps	%xmm1, 16(%rdi)\n"
	"	movaps	%xmm2, 32(%rdi)\n"
	"	movaps	%xmm3, 48(%rdi)\n"
	"	addq	$64, %rdi\n"
	"	cmpq	%r9, %rdi\n"
	"	jb	41b\n"
	"	movups	%xmm4, (%r9)\n"
	"	movups	%xmm5, 16(%r9)\n"
	"	movups	%xmm6, 32(%r9)\n"
	"	movups	%xmm7, 48(%r9)\n"
	"	xorl	%eax, %eax\n"
	"	ret\n"
	"5:	cmpl	$8, %edx\n"
	"	jb	51f\n"
	"	movq	(%rsi), %rax\n"
	"	movq	-8(%rsi,%rdx), %rcx\n"
	"	movq	%rax, (%rdi)\n"
	"	movq	%rcx, -8(%rdi,%rdx)\n"
	"	xorl	%eax, %eax\n"
	"	ret\n"
	"51:	cmpl	$4, %edx\n"
	"	jb	52f\n"
	"	movl	(%rsi), %eax\n"
	"	movl	-4(%rsi,%rdx), %ecx\n"
	"	movl	%eax, (%rdi)\n"
	"	movl	%ecx, -4(%rdi,%rdx)\n"
	"	xorl	%eax, %eax\n"
	"	ret\n"
	"52:	testl	%edx, %edx\n"
	"	jz	53f\n"
	"	movzbl	(%rsi), %eax\n"
	"	movzbl	-1(%rsi,%rdx), %ecx\n"
	"	movb	%al, (%rdi)\n"
	"	movb	%cl, -1(%rdi,%rdx)\n"
	"	cmpl	$3, %edx\n"
	"	jne	53f\n"
	"	movzbl	1(%rsi), %eax\n"
	"	movb	%al, 1(%rdi)\n"
	"53:	xorl	%eax, %eax\n"
	"	ret\n"
	"xr_usercopy_end:\n"
	"xr_usercopy_fault:\n"
	"	movl	$-14, %eax\n"
	"	ret\n"
	"	.cfi_endproc\n"
	"	.size	xr_copy_to_user, . - xr_copy_to_user\n");

int xr_usercopy_fixup(void *context, uintptr_t addr, int any)
{
	greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;

	if ((uintptr_t)r[REG_RIP] - (uintptr_t)xr_usercopy_begin >=
	    (uintptr_t)(xr_usercopy_end - xr_usercopy_begin))
		return 0;
	if (!any && addr - (uintptr_t)r[REG_R8] >= (uintptr_t)r[REG_RDX])
		return 0;
	r[REG_RIP] = (greg_t)(uintptr_t)xr_usercopy_fault;
	return 1;
}

#elif defined(__aarch64__)

/* x0: to, x1: from, x2: bytes.  x3 and x2 say the program's side till the end. */
__asm__(
	"	.text\n"
	"	.globl	xr_copy_to_user, xr_copy_from_user\n"
	"	.hidden	xr_copy_to_user, xr_copy_from_user\n"
	"	.globl	xr_usercopy_begin, xr_usercopy_end, xr_usercopy_fault\n"
	"	.hidden	xr_usercopy_begin, xr_usercopy_end, xr_usercopy_fault\n"
	"	.type	xr_copy_from_user, %function\n"
	"	.type	xr_copy_to_user, %function\n"
	"	.p2align 6\n"
	"xr_usercopy_begin:\n"
	"xr_copy_from_user:\n"
	"	.cfi_startproc\n"
	"	hint	#34\n"		/* bti c */
	"	mov	x3, x1\n"
	"	b	1f\n"
	"	.cfi_endproc\n"
	"	.size	xr_copy_from_user, . - xr_copy_from_user\n"
	"xr_copy_to_user:\n"
	"	.cfi_startproc\n"
	"	hint	#34\n"
	"	mov	x3, x0\n"
	"1:	add	x4, x1, x2\n"
	"	add	x5, x0, x2\n"
	"	cmp	x2, #16\n"
	"	b.lo	4f\n"
	"	cmp	x2, #64\n"
	"	b.hi	2f\n"
	"	ldr	q0, [x1]\n"
	"	ldr	q1, [x4, #-16]\n"
	"	cmp	x2, #32\n"
	"	b.ls	11f\n"
	"	ldr	q2, [x1, #16]\n"
	"	ldr	q3, [x4, #-32]\n"
	"	str	q2, [x0, #16]\n"
	"	str	q3, [x5, #-32]\n"
	"11:	str	q0, [x0]\n"
	"	str	q1, [x5, #-16]\n"
	"	mov	w0, #0\n"
	"	ret\n"
	/* the last 64 bytes are loaded first and stored last; x6: where they begin */
	"2:	ldp	q4, q5, [x4, #-64]\n"
	"	ldp	q6, q7, [x4, #-32]\n"
	"	sub	x6, x5, #64\n"
	"3:	ldp	q0, q1, [x1]\n"
	"	ldp	q2, q3, [x1, #32]\n"
	"	add	x1, x1, #64\n"
	"	stp	q0, q1, [x0]\n"
	"	stp	q2, q3, [x0, #32]\n"
	"	add	x0, x0, #64\n"
	"	cmp	x0, x6\n"
	"	b.lo	3b\n"
	"	stp	q4, q5, [x6]\n"
	"	stp	q6, q7, [x6, #32]\n"
	"	mov	w0, #0\n"
	"	ret\n"
	"4:	tbz	x2, #3, 5f\n"
	"	ldr	x6, [x1]\n"
	"	ldr	x7, [x4, #-8]\n"
	"	str	x6, [x0]\n"
	"	str	x7, [x5, #-8]\n"
	"	mov	w0, #0\n"
	"	ret\n"
	"5:	tbz	x2, #2, 6f\n"
	"	ldr	w6, [x1]\n"
	"	ldr	w7, [x4, #-4]\n"
	"	str	w6, [x0]\n"
	"	str	w7, [x5, #-4]\n"
	"	mov	w0, #0\n"
	"	ret\n"
	"6:	cbz	x2, 8f\n"
	"7:	ldrb	w6, [x1], #1\n"
	"	strb	w6, [x0], #1\n"
	"	cmp	x1, x4\n"
	"	b.lo	7b\n"
	"8:	mov	w0, #0\n"
	"	ret\n"
	"xr_usercopy_end:\n"
	"xr_usercopy_fault:\n"
	"	mov	w0, #-14\n"
	"	ret\n"
	"	.cfi_endproc\n"
	"	.size	xr_copy_to_user, . - xr_copy_to_user\n");

int xr_usercopy_fixup(void *context, uintptr_t addr, int any)
{
	mcontext_t *m = &((ucontext_t *)context)->uc_mcontext;

	if ((uintptr_t)m->pc - (uintptr_t)xr_usercopy_begin >=
	    (uintptr_t)(xr_usercopy_end - xr_usercopy_begin))
		return 0;
	if (!any && addr - (uintptr_t)m->regs[3] >= (uintptr_t)m->regs[2])
		return 0;
	m->pc = (uintptr_t)xr_usercopy_fault;
	return 1;
}

#else
#error "a copy that may fault is to be written for this machine"
#endif
