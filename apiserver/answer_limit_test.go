package apiserver

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// TestWorkersAnswersAreShort: only a stream that has begun may be long, whatever a worker says.
func TestWorkersAnswersAreShort(t *testing.T) {
	long := strings.Repeat("x", 3*maxRefusalBytes)
	for name, tt := range map[string]struct {
		said string
		want error
	}{
		"a stream":           {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + long, nil},
		"a refusal":          {"HTTP/1.1 400 Bad Request\r\n\r\nno", nil},
		"an endless header":  {"HTTP/1.1 101 Switching Protocols\r\nA: " + long, errLongRefusal},
		"an endless refusal": {"HTTP/1.1 500 No\r\n\r\n" + long, errLongRefusal},
		"not even HTTP":      {long, errLongRefusal},
	} {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = io.WriteString(theirs, tt.said)
			_ = theirs.Close()
		}()
		got, err := io.ReadAll(&limitedAnswer{Conn: ours})
		if !errors.Is(err, tt.want) || err == nil && string(got) != tt.said || err != nil && len(got) > maxRefusalBytes {
			t.Errorf("%s: %v after %d bytes of %d", name, err, len(got), len(tt.said))
		}
		_ = ours.Close()
	}
}
