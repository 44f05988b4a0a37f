// SPDX-License-Identifier: BSD-2-Clause
// echo server: says its port, echoes.  echo client PORT: 16 connections at once, what comes back is checked.
package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"os/user"
)

func address() string {
	if a := os.Getenv("TEST_ADDRESS"); a != "" {
		return a
	}
	return "127.0.0.1"
}

func serve() {
	l, err := net.Listen("tcp", address()+":0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		go func() {
			io.Copy(c, c)
			c.Close()
		}()
	}
}

func one(port string, seed int64, done chan error) {
	c, err := net.Dial("tcp", address()+":"+port)
	if err != nil {
		done <- err
		return
	}
	defer c.Close()
	r := rand.New(rand.NewSource(seed))
	for i := 0; i < 300; i++ {
		out := make([]byte, 1+r.Intn(1000))
		if i%50 == 0 {
			out = make([]byte, 300000)
		}
		r.Read(out)
		in := make([]byte, len(out))
		go c.Write(out)
		if _, err := io.ReadFull(c, in); err != nil {
			done <- err
			return
		}
		if !bytes.Equal(in, out) {
			done <- fmt.Errorf("wrong bytes in turn %d", i)
			return
		}
	}
	c.(*net.TCPConn).CloseWrite()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		done <- fmt.Errorf("no end: %d %v", n, err)
		return
	}
	done <- nil
}

func main() {
	// of libc, where the program is linked with it
	user.Current()
	if os.Args[1] == "server" {
		serve()
	}
	done := make(chan error)
	for i := 0; i < 16; i++ {
		go one(os.Args[2], int64(i), done)
	}
	for i := 0; i < 16; i++ {
		if err := <-done; err != nil {
			panic(err)
		}
	}
	fmt.Println("ok")
}
