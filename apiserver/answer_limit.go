package apiserver

import (
	"bytes"
	"errors"
	"net"
)

// maxRefusalBytes is what a worker may say before a stream begins: upstream's
// handlers keep all of it in memory.
const maxRefusalBytes = 64 << 10

var errLongRefusal = errors.New("the worker's answer is too long")

// limitedAnswer is a connection to a worker, who answers with 101 and then as much
// as the client takes; or with a refusal, which is short.
type limitedAnswer struct {
	net.Conn
	said []byte // until the stream begins
	open bool
}

// Read implements net.Conn.
func (c *limitedAnswer) Read(b []byte) (int, error) {
	if c.open {
		return c.Conn.Read(b)
	}
	if len(c.said) >= maxRefusalBytes {
		return 0, errLongRefusal
	}
	n, err := c.Conn.Read(b[:min(len(b), maxRefusalBytes-len(c.said))])
	c.said = append(c.said, b[:n]...)
	line, _, _ := bytes.Cut(c.said, []byte("\r\n"))
	_, status, _ := bytes.Cut(line, []byte(" "))
	if bytes.HasPrefix(status, []byte("101 ")) && bytes.Contains(c.said, []byte("\r\n\r\n")) {
		c.open, c.said = true, nil
	}
	return n, err
}
