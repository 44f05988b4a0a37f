// SPDX-License-Identifier: BSD-2-Clause
// net.js server: says its port.  net.js client PORT: what node's net does with sockets, each thing checked.
const net = require('net'), crypto = require('crypto'), assert = require('assert');
const host = process.env.TEST_ADDRESS || '127.0.0.1';

// The first byte says what is wanted of a connection.
function serve() {
	const l = net.createServer({ allowHalfOpen: true }, (s) => {
		s.on('error', () => {});
		s.once('data', (first) => {
			const want = String.fromCharCode(first[0]);
			s.pause();
			s.unshift(first.subarray(1));
			if (want === 'e') {
				s.pipe(s);
			} else if (want === 'h') { // an answer after the other end's last word
				const h = crypto.createHash('sha256');
				s.on('data', (d) => h.update(d));
				s.on('end', () => s.end(h.digest('hex')));
			} else if (want === 's') { // reads slowly, by halts
				const h = crypto.createHash('sha256');
				s.on('data', (d) => {
					h.update(d);
					s.pause();
					setTimeout(() => s.resume(), 1);
				});
				s.on('end', () => s.end(h.digest('hex')));
			} else if (want === 'r') {
				s.once('data', () => s.resetAndDestroy());
			} else if (want === 'd') {
				s.once('data', () => s.destroy());
			}
			s.resume();
		});
	});
	l.listen(0, host, () => console.log(l.address().port));
}

const port = Number(process.argv[3]);
const open = (opt) => new Promise((ok, bad) => {
	const s = net.connect({ port, host, ...opt }, () => ok(s));
	s.once('error', bad);
});
const closed = (s) => new Promise((ok) => s.once('close', ok));
const sha = (b) => crypto.createHash('sha256').update(b).digest('hex');
async function all(s) {
	const got = [];
	for await (const d of s)
		got.push(d);
	return Buffer.concat(got);
}
const exactly = (s, n) => new Promise((ok, bad) => {
	const got = [];
	let have = 0;
	const more = (d) => {
		got.push(d);
		have += d.length;
		if (have >= n) {
			s.off('data', more);
			s.off('error', bad);
			ok(Buffer.concat(got));
		}
	};
	s.on('data', more);
	s.on('error', bad);
});

async function echo(seed) {
	const s = await open();
	s.write('e');
	for (let i = 0; i < 100; i++) {
		const out = crypto.randomBytes(1 + (i * 7919 * seed) % (i % 20 ? 900 : 200000));
		s.cork(); // several writes, one writev
		s.write(out.subarray(0, out.length >> 1));
		s.write(out.subarray(out.length >> 1));
		s.uncork();
		assert.deepStrictEqual(await exactly(s, out.length), out);
	}
	assert(s.bytesRead === s.bytesWritten - 1);
	s.end();
	assert.strictEqual((await all(s)).length, 0);
}

async function digest(want) {
	const s = await open({ allowHalfOpen: true }), data = crypto.randomBytes(want === 's' ? 12000000 : 3000000);
	let full = 0;
	s.write(want);
	for (let at = 0; at < data.length; at += 100000)
		if (!s.write(data.subarray(at, at + 100000))) {
			full++;
			await new Promise((ok) => s.once('drain', ok));
		}
	s.end();
	assert(want !== 's' || full > 0, 'never full');
	assert.strictEqual((await all(s)).toString(), sha(data));
}

async function ends() {
	for (const [want, code] of [['r', 'ECONNRESET'], ['d', undefined]]) {
		const s = await open();
		let error;
		s.on('error', (e) => { error = e.code; });
		s.write(want + 'x');
		s.resume();
		await closed(s);
		assert.strictEqual(error, code);
	}
	const idle = await open(), t = Date.now();
	idle.write('e');
	idle.setTimeout(150);
	await new Promise((ok) => idle.once('timeout', ok));
	assert(Date.now() - t >= 140);
	idle.destroy();
	const none = net.createServer();
	await new Promise((ok) => none.listen(0, host, ok));
	const gone = none.address().port;
	await new Promise((ok) => none.close(ok));
	await assert.rejects(open({ port: gone }), { code: 'ECONNREFUSED' });
}

async function run() {
	await Promise.all(Array.from({ length: 20 }, (_, i) => echo(i + 1)));
	await Promise.all([digest('h'), digest('s'), digest('h')]);
	await ends();
	console.log('ok');
	process.exit(0);
}

if (process.argv[2] === 'server')
	serve();
else
	run().catch((e) => { console.error(e); process.exit(1); });
