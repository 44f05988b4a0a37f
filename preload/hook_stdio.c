/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libc's own I/O on a descriptor (streams, dprintf, aio) reaches the kernel without
 * passing a hook, so flows that are used that way stay on TCP.
 */
#include "hook.h"
#include "relay.h"

static void unhooked(int fd)
{
	struct xr_flow *f = xr_fd_flow(fd);

	if (xr_likely(!f) || xr_vfork_depth)
		return;
	xr_fork_check();
	/* the stream's first write must come after all that was written before */
	xr_let_go(f, fd, XR_REASON_RETREAT_CALL, XR_HANDOVER_WAIT_NS);
}

XR_HOOK FILE *fdopen(int fd, const char *mode)
{
	unhooked(fd);
	return xr_real.fdopen(fd, mode);
}

XR_ALIAS(fdopen) FILE *_IO_fdopen(int fd, const char *mode);

/* Closes the descriptor below a stream, too. */
XR_HOOK int fclose(FILE *fp)
{
	struct xr_fds_closing c = { 0, 0 };
	int fd, r, saved = errno;

	fd = fileno(fp);
	errno = saved;
	if (xr_likely(fd < 0) || xr_likely(!xr_fd_entry(fd)) || xr_vfork_depth)
		return xr_real.fclose(fp);
	c = xr_fds_close_begin(fd);
	r = xr_real.fclose(fp);
	saved = errno;
	xr_fds_close_end(c);
	errno = saved;
	return r;
}

XR_ALIAS(fclose) int _IO_fclose(FILE *fp);

XR_HOOK int dprintf(int fd, const char *restrict fmt, ...)
{
	va_list ap;
	int r;

	unhooked(fd);
	va_start(ap, fmt);
	r = xr_real.vdprintf(fd, fmt, ap);
	va_end(ap);
	return r;
}

XR_HOOK int vdprintf(int fd, const char *restrict fmt, va_list ap)
{
	unhooked(fd);
	return xr_real.vdprintf(fd, fmt, ap);
}

XR_HOOK int __dprintf_chk(int fd, int flag, const char *fmt, ...)
{
	va_list ap;
	int r;

	unhooked(fd);
	va_start(ap, fmt);
	r = xr_real.__vdprintf_chk(fd, flag, fmt, ap);
	va_end(ap);
	return r;
}

XR_HOOK int __vdprintf_chk(int fd, int flag, const char *fmt, va_list ap)
{
	unhooked(fd);
	return xr_real.__vdprintf_chk(fd, flag, fmt, ap);
}

/* ---- POSIX asynchronous I/O ----------------------------------------------- */

XR_HOOK int aio_read(struct aiocb *cb)
{
	unhooked(cb->aio_fildes);
	return xr_real.aio_read(cb);
}

XR_HOOK int aio_read64(struct aiocb64 *cb)
{
	unhooked(cb->aio_fildes);
	return xr_real.aio_read64(cb);
}

XR_HOOK int aio_write(struct aiocb *cb)
{
	unhooked(cb->aio_fildes);
	return xr_real.aio_write(cb);
}

XR_HOOK int aio_write64(struct aiocb64 *cb)
{
	unhooked(cb->aio_fildes);
	return xr_real.aio_write64(cb);
}

XR_HOOK int lio_listio(int mode, struct aiocb *const list[restrict], int n,
		       struct sigevent *restrict sev)
{
	int i;

	for (i = 0; i < n; i++)
		if (list[i] && list[i]->aio_lio_opcode != LIO_NOP)
			unhooked(list[i]->aio_fildes);
	return xr_real.lio_listio(mode, list, n, sev);
}

XR_HOOK int lio_listio64(int mode, struct aiocb64 *const list[restrict], int n,
			 struct sigevent *restrict sev)
{
	int i;

	for (i = 0; i < n; i++)
		if (list[i] && list[i]->aio_lio_opcode != LIO_NOP)
			unhooked(list[i]->aio_fildes);
	return xr_real.lio_listio64(mode, list, n, sev);
}
