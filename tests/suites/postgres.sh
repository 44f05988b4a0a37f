#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# postgres.sh BIN TREE DIR STANDBY [TEST...]: PostgreSQL's regression tests against a server of their own, over TCP, below
# DIR; all of them where none is named. STANDBY 1: with a standby, whose contents must be the server's at the end.
# Who calls it has put this shell, and so all that it starts, under xrdma or not.
set -eu
bin=$1 tree=$2 top=$3 standby=$4
shift 4
regress=$tree/src/test/regress
export PGHOST=127.0.0.1 PGUSER=postgres PGSSLMODE=disable PGGSSENCMODE=disable
settings() {
	printf '%s\n' "listen_addresses = '127.0.0.1'" "unix_socket_directories = ''" "port = $1" 'fsync = off' \
		'shared_buffers = 32MB' 'wal_level = replica' 'max_wal_senders = 4' 'hot_standby = on' \
		'max_prepared_transactions = 2' 'wal_keep_size = 256MB' >>"$2/postgresql.conf"
}
start() { "$bin/pg_ctl" -w -s -D "$1" -l "$1.log" start || { cat "$1.log" && exit 9; }; }
# no sockets in it, and many processes
env -u LD_PRELOAD "$bin/initdb" -A trust -U postgres -N --no-instructions --no-locale -D "$top/primary" >"$top/initdb.log"
echo 'host replication all 127.0.0.1/32 trust' >>"$top/primary/pg_hba.conf"
settings 5432 "$top/primary"
start "$top/primary"
if [ "$standby" = 1 ]; then
	"$bin/pg_basebackup" -p 5432 -c fast -R -D "$top/standby"
	settings 5433 "$top/standby"
	start "$top/standby"
fi
mkdir "$top/out"
what=("$@")
[ $# != 0 ] || what=("--schedule=$regress/parallel_schedule")
rc=0
"${bin%/bin}/lib/pgxs/src/test/regress/pg_regress" --inputdir="$regress" --outputdir="$top/out" --bindir="$bin" \
	--dlpath="$tree/modules" --host=127.0.0.1 --port=5432 --user=postgres --max-connections=10 "${what[@]}" >"$top/regress.log" 2>&1 || rc=$?
# what it has said in its own file, and no one else in between
cat "$top/out/regression.out" 2>/dev/null || cat "$top/regress.log"
cat "$top/out/regression.diffs" 2>/dev/null || true
if [ "$standby" = 1 ]; then
	sql() { "$bin/psql" -X -q -A -t -d postgres -p "$1" -c "$2"; }
	want=$(sql 5432 'select pg_current_wal_lsn()')
	for ((i = 0; i < 300; i++)); do
		[ "$(sql 5433 "select pg_last_wal_replay_lsn() >= '$want'")" != t ] || break
		sleep 0.1
	done
	for port in 5432 5433; do
		# what is not logged is not there; sequences are logged some steps ahead of what has been taken; psql's
		# \restrict has a word of each dump's own
		"$bin/pg_dump" -p $port --no-unlogged-table-data regression |
			grep -v -e '^SELECT pg_catalog.setval(' -e '^\\restrict ' -e '^\\unrestrict ' >"$top/dump.$port"
	done
	if diff "$top/dump.5432" "$top/dump.5433" >"$top/differs" && [ "$(wc -l <"$top/dump.5433")" -gt 100 ]; then
		echo 'test standby ... ok'
	else
		echo 'test standby ... FAILED'
		head -n 20 "$top/differs"
	fi
	"$bin/pg_ctl" -s -D "$top/standby" -m fast stop
fi
"$bin/pg_ctl" -s -D "$top/primary" -m fast stop
exit $rc
