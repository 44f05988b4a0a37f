/* SPDX-License-Identifier: BSD-2-Clause */
/* The key of a cluster, see key.h. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include "autoconf.h"
#include "key.h"
#include "log.h"
#include "mem.h"

#define KEY_HEAD "xrdma-key-1 "
#define KEY_HEAD_LEN (sizeof(KEY_HEAD) - 1)

_Static_assert(KEY_HEAD_LEN + 2 * XR_KEY_LEN + 2 <= XR_KEY_TEXT, "room");

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int xr_key_parse(const char *text, size_t len, uint8_t key[XR_KEY_LEN])
{
	uint8_t k[XR_KEY_LEN], any = 0;
	size_t i;

	if (len && text[len - 1] == '\n')
		len--;
	if (len != KEY_HEAD_LEN + 2 * XR_KEY_LEN || memcmp(text, KEY_HEAD, KEY_HEAD_LEN))
		return -EINVAL;
	text += KEY_HEAD_LEN;
	for (i = 0; i < XR_KEY_LEN; i++) {
		int hi = hex(text[2 * i]), lo = hex(text[2 * i + 1]);

		if (hi < 0 || lo < 0)
			return -EINVAL;
		k[i] = (uint8_t)(hi << 4 | lo);
		any |= k[i];
	}
	if (!any)
		return -EINVAL;
	memcpy(key, k, sizeof(k));
	return 0;
}

size_t xr_key_format(const uint8_t key[XR_KEY_LEN], char text[XR_KEY_TEXT])
{
	static const char digit[] = "0123456789abcdef";
	char *p = text + KEY_HEAD_LEN;
	size_t i;

	memcpy(text, KEY_HEAD, KEY_HEAD_LEN);
	for (i = 0; i < XR_KEY_LEN; i++) {
		*p++ = digit[key[i] >> 4];
		*p++ = digit[key[i] & 15];
	}
	*p++ = '\n';
	*p = 0;
	return (size_t)(p - text);
}

/*
 * The group may read it: that is how programs of several users come to share one.  It may not write it, and nobody
 * else may do anything: who chooses the key, or knows it, is trusted.
 */
int xr_key_safe(mode_t mode, uid_t owner, uid_t euid)
{
	return (mode & 0027) || (owner && owner != euid) ? -EPERM : 0;
}

const char *xr_key_path(const struct xr_config *cfg)
{
	return *cfg->rdma_key ? cfg->rdma_key : XR_SYSCONFDIR "/xrdma/key";
}

static long key_read(int fd, char *text, size_t room)
{
	size_t len = 0;
	long n;

	do {
		n = xr_sys3(SYS_read, fd, text + len, room - len);
		if (n > 0)
			len += (size_t)n;
	} while ((n > 0 && len < room) || n == -EINTR);
	return n < 0 ? n : (long)len;
}

int xr_key_load(const char *path, uint8_t key[XR_KEY_LEN])
{
	char text[XR_KEY_TEXT];
	struct stat st;
	long n;
	/* O_NONBLOCK: a FIFO must not stop the program */
	int fd = (int)xr_sys4(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);

	if (fd < 0)
		return fd;
	/* of what was opened, whatever has that name by now */
	n = xr_sys4(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH);
	if (!n && !S_ISREG(st.st_mode))
		n = -EINVAL;
	if (!n)
		n = xr_key_safe(st.st_mode, st.st_uid, (uid_t)xr_sys0(SYS_geteuid));
	if (!n)
		n = key_read(fd, text, sizeof(text));
	xr_sys1(SYS_close, fd);
	if (n >= 0)
		n = xr_key_parse(text, (size_t)n, key);
	explicit_bzero(text, sizeof(text));
	return (int)n;
}

const char *xr_key_error_text(int err)
{
	switch (err) {
	case -EPERM:
		return "others than its owner and group may use it, the group may write it, or it belongs to "
		       "somebody else";
	case -EINVAL:
		return "is not a key";
	default:
		return xr_error_text(err);
	}
}

int xr_key_make(const char *path)
{
	uint8_t key[XR_KEY_LEN];
	char text[XR_KEY_TEXT];
	size_t len;
	long n;
	int fd, r = xr_random(key, sizeof(key));

	if (r)
		return r;
	fd = (int)xr_sys4(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return fd;
	len = xr_key_format(key, text);
	n = xr_sys3(SYS_write, fd, text, len);
	r = n < 0 ? (int)n : n != (long)len ? -ENOSPC : 0;
	if (!r)
		r = (int)xr_sys1(SYS_fsync, fd);
	xr_sys1(SYS_close, fd);
	/* a part of a key is none */
	if (r)
		xr_sys3(SYS_unlinkat, AT_FDCWD, path, 0);
	explicit_bzero(key, sizeof(key));
	explicit_bzero(text, sizeof(text));
	return r;
}
