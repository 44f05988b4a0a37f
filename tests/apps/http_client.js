// SPDX-License-Identifier: BSD-2-Clause
// One kept-alive connection; checks that each answer is what was sent.
const http = require('http');
const crypto = require('crypto');
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

function post(body) {
	return new Promise((resolve, reject) => {
		const req = http.request({ host: process.env.TEST_ADDRESS, port: Number(process.argv[2]), method: 'POST',
			agent, headers: { 'Content-Length': body.length } }, (res) => {
			const parts = [];
			res.on('data', (d) => parts.push(d));
			res.on('end', () => (Buffer.concat(parts).equals(body) ? resolve() :
				reject(new Error('wrong body for ' + body.length))));
			res.on('error', reject);
		});
		req.on('error', reject);
		req.end(body);
	});
}

async function main() {
	for (let i = 0; i < 40; i++)
		await post(crypto.randomBytes(2000));
	console.log('warm');
	await new Promise((resolve) => process.stdin.once('data', resolve));
	process.stdin.destroy();
	for (const n of [1, 100, 65536, 5000000, 3, 2000000])
		await post(crypto.randomBytes(n));
	for (let i = 0; i < 200; i++)
		await post(crypto.randomBytes(10 * i + 1));
	console.log('ok');
	agent.destroy();
}

main().catch((e) => {
	console.error(e);
	process.exit(1);
});
