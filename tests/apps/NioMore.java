// SPDX-License-Identifier: BSD-2-Clause
// NioMore server KIND, NioMore client KIND PORT.  KIND: blocking (channels, a thread each, scattered and
// gathered), selector (one thread, all connections at both ends), async (completion handlers: epoll, one shot).
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.util.*;
import java.util.concurrent.*;

public class NioMore {
	static final int CONNECTIONS = 100, TURNS = 60;

	static byte[] bytes(int seed, int turn) {
		Random r = new Random(seed * 1000L + turn);
		byte[] b = new byte[1 + r.nextInt(turn % 20 == 7 ? 100000 : 700)];
		r.nextBytes(b);
		return b;
	}

	static void check(ByteBuffer got, int seed, int turn) {
		got.flip();
		if (!got.equals(ByteBuffer.wrap(bytes(seed, turn))))
			throw new IllegalStateException("wrong bytes, connection " + seed + " turn " + turn);
	}

	// ---- a thread for each connection ----

	static void echoBlocking(SocketChannel c) {
		ByteBuffer[] b = { ByteBuffer.allocate(100), ByteBuffer.allocateDirect(50000) };
		try (c) {
			while (true) {
				for (ByteBuffer x : b)
					x.clear();
				if (c.read(b) < 0)
					return;
				for (ByteBuffer x : b)
					x.flip();
				while (b[0].hasRemaining() || b[1].hasRemaining())
					c.write(b);
			}
		} catch (Exception e) {
			e.printStackTrace();
		}
	}

	static void useBlocking(int port, int seed) throws Exception {
		try (SocketChannel c = SocketChannel.open(new InetSocketAddress(InetAddress.getByName(System.getenv("TEST_ADDRESS")), port))) {
			c.setOption(StandardSocketOptions.TCP_NODELAY, true);
			for (int i = 0; i < TURNS; i++) {
				byte[] out = bytes(seed, i);
				ByteBuffer got = ByteBuffer.allocate(out.length);
				int half = out.length / 2;
				ByteBuffer[] w = { ByteBuffer.wrap(out, 0, half), ByteBuffer.wrap(out, half, out.length - half) };
				while (w[0].hasRemaining() || w[1].hasRemaining())
					c.write(w);
				while (got.hasRemaining())
					if (c.read(got) < 0)
						throw new IllegalStateException("early end");
				check(got, seed, i);
			}
			c.shutdownOutput();
			if (c.read(ByteBuffer.allocate(1)) != -1)
				throw new IllegalStateException("no end");
		}
	}

	// ---- one thread, one selector ----

	static class One {
		int seed, turn;
		ByteBuffer out, in;

		void next() {
			out = ByteBuffer.wrap(bytes(seed, turn));
			in = ByteBuffer.allocate(out.remaining());
		}
	}

	static void useSelector(int port) throws Exception {
		Selector sel = Selector.open();
		int left = CONNECTIONS;
		for (int i = 0; i < CONNECTIONS; i++) {
			SocketChannel c = SocketChannel.open();
			c.configureBlocking(false);
			One o = new One();
			o.seed = i;
			o.next();
			c.connect(new InetSocketAddress(InetAddress.getByName(System.getenv("TEST_ADDRESS")), port));
			c.register(sel, SelectionKey.OP_CONNECT, o);
		}
		while (left > 0) {
			sel.select();
			for (SelectionKey k : sel.selectedKeys()) {
				SocketChannel c = (SocketChannel) k.channel();
				One o = (One) k.attachment();
				if (k.isConnectable() && c.finishConnect())
					k.interestOps(SelectionKey.OP_WRITE | SelectionKey.OP_READ);
				if (k.isValid() && k.isWritable() && c.isConnected()) {
					c.write(o.out);
					if (!o.out.hasRemaining())
						k.interestOps(SelectionKey.OP_READ);
				}
				if (!k.isReadable())
					continue;
				if (o.turn == TURNS) {
					if (c.read(ByteBuffer.allocate(1)) != -1)
						throw new IllegalStateException("no end");
					c.close();
					left--;
					continue;
				}
				if (c.read(o.in) < 0)
					throw new IllegalStateException("early end");
				if (o.in.hasRemaining())
					continue;
				check(o.in, o.seed, o.turn);
				if (++o.turn == TURNS) {
					c.shutdownOutput();
				} else {
					o.next();
					k.interestOps(SelectionKey.OP_WRITE | SelectionKey.OP_READ);
				}
			}
			sel.selectedKeys().clear();
		}
	}

	static void serveSelector(ServerSocketChannel l) throws Exception {
		Selector sel = Selector.open();
		l.configureBlocking(false);
		l.register(sel, SelectionKey.OP_ACCEPT);
		while (true) {
			sel.select();
			for (SelectionKey k : sel.selectedKeys()) {
				if (k.isAcceptable()) {
					SocketChannel c = l.accept();
					c.configureBlocking(false);
					c.register(sel, SelectionKey.OP_READ, ByteBuffer.allocate(3000));
					continue;
				}
				SocketChannel c = (SocketChannel) k.channel();
				ByteBuffer b = (ByteBuffer) k.attachment();
				if (k.isReadable() && c.read(b) < 0) {
					c.close();
					continue;
				}
				b.flip();
				c.write(b);
				b.compact();
				k.interestOps((b.hasRemaining() ? SelectionKey.OP_READ : 0)
					| (b.position() > 0 ? SelectionKey.OP_WRITE : 0));
			}
			sel.selectedKeys().clear();
		}
	}

	// ---- completion handlers ----

	static void echoAsync(AsynchronousSocketChannel c, ByteBuffer b) {
		c.read(b, null, new CompletionHandler<Integer, Void>() {
			public void completed(Integer n, Void a) {
				if (n < 0) {
					try {
						c.close();
					} catch (Exception e) {
						e.printStackTrace();
					}
					return;
				}
				b.flip();
				c.write(b, null, new CompletionHandler<Integer, Void>() {
					public void completed(Integer n, Void a) {
						if (b.hasRemaining()) {
							c.write(b, null, this);
						} else {
							b.clear();
							echoAsync(c, b);
						}
					}
					public void failed(Throwable e, Void a) {
						e.printStackTrace();
					}
				});
			}
			public void failed(Throwable e, Void a) {
				e.printStackTrace();
			}
		});
	}

	static void useAsync(int port, int seed) throws Exception {
		try (AsynchronousSocketChannel c = AsynchronousSocketChannel.open()) {
			c.connect(new InetSocketAddress(InetAddress.getByName(System.getenv("TEST_ADDRESS")), port)).get();
			for (int i = 0; i < TURNS; i++) {
				ByteBuffer out = ByteBuffer.wrap(bytes(seed, i)), got = ByteBuffer.allocate(out.remaining());
				while (out.hasRemaining())
					c.write(out).get(20, TimeUnit.SECONDS);
				while (got.hasRemaining())
					if (c.read(got).get(20, TimeUnit.SECONDS) < 0)
						throw new IllegalStateException("early end");
				check(got, seed, i);
			}
			c.shutdownOutput();
			if (c.read(ByteBuffer.allocate(1)).get() != -1)
				throw new IllegalStateException("no end");
		}
	}

	static void serve(String kind) throws Exception {
		InetSocketAddress any = new InetSocketAddress(InetAddress.getByName(System.getenv("TEST_ADDRESS")), 0);
		if (kind.equals("async")) {
			AsynchronousServerSocketChannel l = AsynchronousServerSocketChannel.open().bind(any, 200);
			System.out.println(((InetSocketAddress) l.getLocalAddress()).getPort());
			while (true)
				echoAsync(l.accept().get(), ByteBuffer.allocateDirect(20000));
		}
		ServerSocketChannel l = ServerSocketChannel.open().bind(any, 200);
		System.out.println(((InetSocketAddress) l.getLocalAddress()).getPort());
		if (kind.equals("selector"))
			serveSelector(l);
		while (true) {
			SocketChannel c = l.accept();
			new Thread(() -> echoBlocking(c)).start();
		}
	}

	public static void main(String[] a) throws Exception {
		if (a[0].equals("server"))
			serve(a[1]);
		int port = Integer.parseInt(a[2]);
		if (a[1].equals("selector")) {
			useSelector(port);
		} else {
			ExecutorService pool = Executors.newFixedThreadPool(CONNECTIONS);
			List<Future<?>> all = new ArrayList<>();
			for (int i = 0; i < CONNECTIONS; i++) {
				int n = i;
				all.add(pool.submit(() -> {
					if (a[1].equals("async"))
						useAsync(port, n);
					else
						useBlocking(port, n);
					return null;
				}));
			}
			for (Future<?> f : all)
				f.get(60, TimeUnit.SECONDS);
			pool.shutdown();
		}
		System.out.println("ok");
		System.exit(0);
	}
}
