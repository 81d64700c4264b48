package apiserver

import (
	"io"
	"strings"
)

// indenter writes the JSON that it is given as json.MarshalIndent would, with
// two spaces, piece by piece. What it is given must be JSON; it looks at nothing
// but strings, brackets, commas and colons.
type indenter struct {
	w        io.Writer
	depth    int
	inString bool
	escaped  bool
	opened   bool // a bracket, and nothing in it yet
	out      []byte
}

// Write implements io.Writer.
func (i *indenter) Write(b []byte) (int, error) {
	i.out = i.out[:0]
	for _, c := range b {
		i.add(c)
	}
	if len(i.out) == 0 {
		return len(b), nil
	}
	if _, err := i.w.Write(i.out); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (i *indenter) add(c byte) {
	switch {
	case i.inString:
		i.out = append(i.out, c)
		i.inString = i.escaped || c != '"'
		i.escaped = !i.escaped && c == '\\'
		return
	case c == ' ' || c == '\t' || c == '\r' || c == '\n':
		return
	case c == '}' || c == ']':
		i.depth--
		if !i.opened {
			i.newLine()
		}
		i.opened = false
		i.out = append(i.out, c)
		return
	case i.opened:
		i.opened = false
		i.newLine()
	}
	i.out = append(i.out, c)
	switch c {
	case '"':
		i.inString = true
	case '{', '[':
		i.depth++
		i.opened = true
	case ',':
		i.newLine()
	case ':':
		i.out = append(i.out, ' ')
	}
}

func (i *indenter) newLine() {
	i.out = append(i.out, '\n')
	i.out = append(i.out, strings.Repeat("  ", i.depth)...)
}
