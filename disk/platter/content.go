package platter

// chunkBytes is what of a file is kept together.
const chunkBytes = 64 << 10

// content is what is in a file, in chunks. Files are made longer than what is written into them, by megabytes that nobody reads, and
// grow with every write: a chunk that nobody has written into is zero and takes no memory, and those that are there stay where they are.
type content struct {
	chunks [][]byte // nil: zeroes
	size   int64    // of the file; what is behind it is zero, too
}

// parts calls f with every part of a chunk between two places of a file.
func (c *content) parts(from, to int64, f func(chunk int, at, end, done int64)) {
	for at := from; at < to; {
		chunk := at / chunkBytes
		end := min(to, (chunk+1)*chunkBytes)
		f(int(chunk), at-chunk*chunkBytes, end-chunk*chunkBytes, at-from)
		at = end
	}
}

func (c *content) resize(size int64) {
	c.parts(size, min(c.size, int64(len(c.chunks))*chunkBytes), func(chunk int, at, end, _ int64) {
		if c.chunks[chunk] != nil {
			clear(c.chunks[chunk][at:end])
		}
	})
	c.size = size
	c.chunks = c.chunks[:min(int64(len(c.chunks)), (size+chunkBytes-1)/chunkBytes)]
}

func (c *content) overwrite(at int64, with []byte) {
	end := at + int64(len(with))
	for int64(len(c.chunks))*chunkBytes < end {
		c.chunks = append(c.chunks, nil)
	}
	c.parts(at, end, func(chunk int, at, end, done int64) {
		if c.chunks[chunk] == nil {
			c.chunks[chunk] = make([]byte, chunkBytes)
		}
		copy(c.chunks[chunk][at:end], with[done:])
	})
	c.size = max(c.size, end)
}

// read says how many bytes there are from a place in the file on, of those that b has room for.
func (c *content) read(b []byte, at int64) int {
	b = b[:max(0, min(int64(len(b)), c.size-at))]
	c.parts(at, at+int64(len(b)), func(chunk int, at, end, done int64) {
		part := b[done : done+end-at]
		if chunk < len(c.chunks) && c.chunks[chunk] != nil {
			copy(part, c.chunks[chunk][at:end])
		} else {
			clear(part)
		}
	})
	return len(b)
}

func (c *content) clone() content {
	out := content{make([][]byte, len(c.chunks)), c.size}
	for i, chunk := range c.chunks {
		if chunk != nil {
			out.chunks[i] = append([]byte(nil), chunk...)
		}
	}
	return out
}
