// SPDX-License-Identifier: BSD-2-Clause
// Answers each request with its own body.
const http = require('http');
const server = http.createServer((req, res) => {
	res.writeHead(200, { 'Content-Type': 'application/octet-stream' });
	req.pipe(res);
});
server.keepAliveTimeout = 60000;
server.listen(Number(process.argv[2]), process.env.TEST_ADDRESS);
