// SPDX-License-Identifier: BSD-2-Clause
// Nio server: echoes by a selector, port on the first line. Nio client PORT: threads that block, data checked.
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.util.Random;

public class Nio {
	static void server() throws Exception {
		Selector sel = Selector.open();
		ServerSocketChannel l = ServerSocketChannel.open();
		l.bind(new InetSocketAddress(InetAddress.getByName(System.getenv("TEST_ADDRESS")), 0));
		l.configureBlocking(false);
		l.register(sel, SelectionKey.OP_ACCEPT);
		System.out.println(((InetSocketAddress) l.getLocalAddress()).getPort());
		while (true) {
			sel.select();
			for (SelectionKey k : sel.selectedKeys()) {
				if (k.isAcceptable()) {
					SocketChannel c = l.accept();
					c.configureBlocking(false);
					c.register(sel, SelectionKey.OP_READ, ByteBuffer.allocateDirect(1 << 16));
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

	static void one(int port, int seed) throws Exception {
		Random r = new Random(seed);
		try (Socket s = new Socket(InetAddress.getByName(System.getenv("TEST_ADDRESS")), port)) {
			s.setTcpNoDelay(true);
			for (int i = 0; i < 300; i++) {
				byte[] out = new byte[1 + r.nextInt(i % 10 == 0 ? 50000 : 500)];
				r.nextBytes(out);
				s.getOutputStream().write(out);
				byte[] in = s.getInputStream().readNBytes(out.length);
				if (!java.util.Arrays.equals(in, out))
					throw new Exception("wrong bytes in turn " + i);
			}
			s.shutdownOutput();
			if (s.getInputStream().read() != -1)
				throw new Exception("no end");
		}
	}

	public static void main(String[] a) throws Exception {
		if (a[0].equals("server"))
			server();
		int port = Integer.parseInt(a[1]);
		Thread[] t = new Thread[16];
		int[] good = new int[t.length];
		for (int i = 0; i < t.length; i++) {
			int n = i;
			t[i] = new Thread(() -> {
				try {
					one(port, n);
					good[n] = 1;
				} catch (Exception e) {
					e.printStackTrace();
				}
			});
			t[i].start();
		}
		for (int i = 0; i < t.length; i++) {
			t[i].join();
			if (good[i] == 0)
				System.exit(1);
		}
		System.out.println("ok");
	}
}
