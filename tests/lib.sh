# SPDX-License-Identifier: BSD-2-Clause
# shellcheck shell=bash
# What tests/run and .ci/run share: packages, a build outside the source tree, the sum of all results.
# The caller sets $top, the source tree. Nothing is ever written into it.

# Without these nothing can be built or tested.
PACKAGES_BUILD=(autoconf automake gcc libc6-dev libcmocka-dev libibverbs-dev libjansson-dev librdmacm-dev libtool make
	nettle-dev pkg-config systemtap-sdt-dev)
PACKAGES_TEST=(mandoc python3 python3-pytest python3-pytest-timeout python3-pytest-xdist valgrind)
# Programs that tests drive; a test whose program is missing is skipped and counted as such.
PACKAGES_APPS=(apache2-utils curl erlang-base golang-go haproxy iperf3 iproute2 mariadb-client-core
	mariadb-server-core memcached mosquitto mosquitto-clients netcat-openbsd nginx nodejs
	openssh-client openssh-server postgresql procps redis-server redis-tools rsync socat strace
	sysbench wrk)

# What a guest kernel is built with, and what its tests run in it.
PACKAGES_KERNEL=(bc bison flex gcc libc6-dev libelf-dev libssl-dev make xz-utils)
PACKAGES_GUEST=(ibverbs-providers ibverbs-utils iproute2 nftables perftest rdma-core rdmacm-utils
	redis-server redis-tools)
# What runs one of Debian's kernels, where the other does not run.
PACKAGES_QEMU=(busybox-static cpio kmod qemu-system-x86 xz-utils)
# What the suites of tests/suites are made of, beside those.
PACKAGES_SUITES=(curl dpkg-dev libpython3.11-testsuite libssl-dev memcached perl postgresql redis-server redis-tools tcl)

passed=0 failed=0 skipped=0 pytest_in=() pytest_arguments=() took='' counted=0
jobs=$(nproc 2>/dev/null || echo 2)

say() { printf '==> %s\n' "$*"; }

# count PASSED FAILED SKIPPED [NAME]: add one layer to the sum, and show it
count() {
	passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
	if [ -n "${4:-}" ]; then
		say "$4: $1 passed, $2 failed, $3 skipped"
		took+=", ${4%%:*} $((SECONDS - counted))" counted=$SECONDS
	fi
}

# summary: the last line of every run, and the exit status
summary() {
	[ -z "${unsteady:-}" ] || say "passed at the second try only:$unsteady"
	[ -z "$took" ] || say "seconds: ${took#, }"
	printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
	[ "$failed" = 0 ] && [ $((passed + skipped)) != 0 ]
	exit
}

# die MESSAGE: something that must work did not; it counts as one failure
die() {
	say "failed: $*"
	count 0 1 0
	summary
}

# missing PACKAGE...: print those that are not installed
missing() {
	local have
	have=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' "$@" 2>/dev/null) "
	for p in "$@"; do
		[[ $have == *" installed:$p "* ]] || echo "$p"
	done
}

# retry COMMAND...: three attempts
retry() {
	local n
	for n in 1 2 3; do
		"$@" && return 0
		[ $n = 3 ] || sleep $((n * 5))
	done
	return 1
}

# drop_policy: allow again what install_packages forbade
drop_policy() {
	[ -z "${policy_rc:-}" ] || rm -f "$policy_rc"
	policy_rc=''
}

# install_packages required|wanted PACKAGE...: wanted ones may stay missing
install_packages() {
	local kind=$1 want
	shift
	if ! command -v dpkg-query >/dev/null; then
		say "not a Debian system: taking what is installed"
		return 0
	fi
	want=$(missing "$@" | tr '\n' ' ')
	[ -n "$want" ] || return 0
	if [ "$(id -u)" = 0 ]; then
		say "installing: $want"
		export DEBIAN_FRONTEND=noninteractive
		if [ -z "${apt_updated:-}" ]; then
			retry apt-get -qq update || say "apt-get update failed; trying with the lists at hand"
			apt_updated=1
		fi
		# Installing redis or nginx must not start it: for so long, the policy is "no".
		if [ ! -e /usr/sbin/policy-rc.d ]; then
			policy_rc=/usr/sbin/policy-rc.d
			printf '#!/bin/sh\nexit 101\n' >$policy_rc && chmod 755 $policy_rc
		fi
		# shellcheck disable=SC2086
		retry apt-get -qq -y -o Dpkg::Use-Pty=0 --no-install-recommends install $want \
			>"$work/apt.log" 2>&1 || tail -n 20 "$work/apt.log"
		drop_policy
		want=$(missing "$@" | tr '\n' ' ')
		[ -n "$want" ] || return 0
	fi
	if [ "$kind" = required ]; then
		die "these packages are needed: $want (as root: apt-get install $want)"
	fi
	say "not installed: $want; what needs them is skipped"
}

# shellcheck disable=SC2317 # called by the trap of make_work
end_work() {
	drop_policy
	if [ -n "${work_is_ours:-}" ]; then
		chmod -R u+w "$work" # make dist leaves read-only directories when it is interrupted
		rm -rf "$work"
	fi
}

# make_work: $work, a directory that is removed at the end, or $XRDMA_BUILD_DIR, which stays
make_work() {
	umask 022
	if [ -n "${XRDMA_BUILD_DIR:-}" ]; then
		mkdir -p "$XRDMA_BUILD_DIR" || exit 2
		work=$(cd "$XRDMA_BUILD_DIR" && pwd) || exit 2
		export -n XRDMA_BUILD_DIR # no setting of a program that a test starts
	else
		work=$(mktemp -d "${TMPDIR:-/tmp}/xrdma-tests.XXXXXX") || exit 2
		work_is_ours=1
		chmod 755 "$work" # some tests run programs as another user
	fi
	trap end_work EXIT
	trap 'exit 130' HUP INT TERM
	case $work/ in
	"$top"/*) echo "the build directory must be outside the source tree" >&2; exit 2 ;;
	esac
}

# copy_tree: the source tree without what a build inside it would have left, to $work/src
copy_tree() {
	mkdir -p "$work/src"
	rm -rf "$work/src/tests" "$work/src/bench" "$work/src/man"
	tar -C "$top" -c --exclude=.git --exclude=.libs --exclude=.deps --exclude=.dirstamp \
		--exclude='*.o' --exclude='*.lo' --exclude='*.la' --exclude=__pycache__ \
		--exclude=.pytest_cache --exclude=autom4te.cache --exclude=./config.status \
		--exclude=./Makefile --exclude=./autoconf.h --exclude=./stamp-h1 --exclude=./libtool \
		--exclude=./core/xrdma.pc . | tar -C "$work/src" -x --no-same-owner ||
		die "cannot copy $top"
	chmod -R u+w "$work/src"
	if [ ! -e "$work/src/configure" ] || [ ! -e "$work/src/Makefile.in" ] ||
		[ ! -e "$work/src/build-aux/ltmain.sh" ]; then
		say "autogen"
		(cd "$work/src" && ./autogen.sh) >"$work/autogen.log" 2>&1 ||
			{ tail -n 30 "$work/autogen.log"; die "autogen.sh"; }
	fi
}

# configure_and_build DIR TARGET [CONFIGURE-OPTION...]: returns 1 with the end of the log shown
configure_and_build() {
	local dir=$work/$1 target=$2 log=$work/$1.log
	shift 2
	mkdir -p "$dir"
	if [ ! -e "$dir/config.status" ] || [ "$(cat "$dir/options" 2>/dev/null)" != "${CC:-} $*" ]; then
		if ! (cd "$dir" && ../src/configure -q "$@") >"$log" 2>&1; then
			tail -n 20 "$log"
			return 1
		fi
		echo "${CC:-} $*" >"$dir/options"
	fi
	if ! make -C "$dir" -k -j"$jobs" "$target" >"$log" 2>&1; then
		grep -E -A3 'error|warning|undefined|multiple definition|\*\*\*' "$log" | head -n 60
		return 1
	fi
}

# run_unit DIR NAME: the tests of make check in $work/DIR, whose programs were built
run_unit() {
	local log=$work/$1-check.log rc=0 sums run=()
	# TSan of gcc 12 and clang 14 cannot start where the kernel randomises more than 28 bits.
	if [[ $1 == *tsan* ]] && setarch -R true 2>/dev/null; then run=(setarch -R); fi
	find "$work/$1" -name '*.trs' -delete
	"${run[@]}" make -C "$work/$1" -k -j"$jobs" check-TESTS VERBOSE=1 >"$log" 2>&1 || rc=$?
	if [ $rc = 0 ]; then
		grep -E '^(PASS|SKIP|XFAIL): ' "$log"
	else
		grep -v -E '^(make|  CC|  CCLD)' "$log" | tail -n 200
	fi
	read -r -a sums < <(python3 "$top/tests/tally.py" unit "$work/$1" $rc)
	count "${sums[@]:-0 1 0}" "$2"
}

# pytest_once XML OPTION...: sets sums to passed, failed, skipped. $source is where the tests are, $pytest_in
# what runs it elsewhere.
pytest_once() {
	local xml=$1 rc=0
	shift
	rm -f "$xml"
	(cd "$source" && "${pytest_in[@]}" python3 -m pytest --junitxml="$xml" "$@") || rc=$?
	# What the caller chose (-k) may be in another layer; summary fails when it is in none.
	if [ $rc = 5 ] && [ ${#pytest_arguments[@]} != 0 ]; then
		sums=(0 0 0)
		return
	fi
	read -r -a sums < <(python3 "$top/tests/tally.py" junit "$xml" $rc)
	[ ${#sums[@]} = 3 ] || sums=(0 1 0)
}

# run_pytest LAYER ARGUMENT...
# Many tests measure time, and two at once share two cores. What failed is run once more, alone:
# it counts as failed when it fails again, and is named when it does not.
run_pytest() {
	local layer=$1 first again arg files parallel=() options=(-q -rfEs --tb=short -o cache_dir="$work/cache-$1")
	shift
	python3 -c 'import xdist' 2>/dev/null && parallel=(-n "${pytest_jobs:-2}")
	python3 -c 'import pytest_timeout' 2>/dev/null && options+=(--timeout "${XRDMA_TEST_TIMEOUT:-120}")
	pytest_once "$work/$layer.xml" "${options[@]}" "${parallel[@]}" "$@"
	# A wrong, missing or repeated byte is never a matter of time: no second try for anything then.
	if grep -q -e EBADMSG -e 'wrong byte' -e 'rx_sum.* == ' "$work/$layer.xml" 2>/dev/null; then
		say "$layer: data was wrong, see above"
	elif [ "${sums[1]}" != 0 ] && [ "${sums[1]}" -le 20 ] && [ -s "$work/$layer.xml" ]; then
		first=("${sums[@]}")
		# what is named by itself is not found among those that failed, its file is
		files=()
		for arg; do files+=("${arg%%.py::*}$([[ $arg == *.py::* ]] && echo .py)"); done
		say "$layer: ${first[1]} failed, once more without company"
		pytest_once "$work/$layer-again.xml" "${options[@]}" --last-failed "${files[@]}"
		again=$((first[1] - sums[1]))
		[ $again -le 0 ] || unsteady+=" $layer $again"
		sums=($((first[0] + sums[0])) "${sums[1]}" "${first[2]}")
	fi
	count "${sums[@]}" "$layer"
}
