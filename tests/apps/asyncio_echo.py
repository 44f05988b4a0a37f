# SPDX-License-Identifier: BSD-2-Clause
"""An echo server and a client that checks it, both on asyncio streams."""
import asyncio
import os
import random
import sys


async def serve(port):
    async def echo(r, w):
        while data := await r.read(65536):
            w.write(data)
            await w.drain()
        w.close()
    server = await asyncio.start_server(echo, os.environ["TEST_ADDRESS"], port)
    await server.serve_forever()


async def talk(port, seed, warm, go):
    r, w = await asyncio.open_connection(os.environ["TEST_ADDRESS"], port)
    rng = random.Random(seed)

    async def turn(n):
        data = rng.randbytes(n)
        w.write(data)
        assert await r.readexactly(n) == data
    for _ in range(30):
        await turn(2000)
    await warm.wait()
    await go.wait()
    for _ in range(30):
        await turn(rng.choice((1, 100, 5000, 100000)))
    data = rng.randbytes(2_000_000)

    async def send():
        w.write(data)
        await w.drain()
        w.write_eof()
    got, _ = await asyncio.gather(r.read(), send())
    assert got == data
    w.close()


class Barrier:
    def __init__(self, n, text):
        self.n, self.text, self.full = n, text, asyncio.Event()

    async def wait(self):
        self.n -= 1
        if self.n == 0:
            print(self.text, flush=True)
            self.full.set()
        await self.full.wait()


async def client(port):
    n = 20
    warm, go = Barrier(n, "warm"), asyncio.Event()
    jobs = [asyncio.create_task(talk(port, i, warm, go)) for i in range(n)]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    go.set()
    await asyncio.gather(*jobs)
    print("ok")


asyncio.run((serve if sys.argv[1] == "server" else client)(int(sys.argv[2])))
