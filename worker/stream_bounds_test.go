package worker

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/websocket"
)

// A frame of SPDY: of data, or a ping.
func spdyBytes(control bool, kind byte, payload string) string {
	head := []byte{0, 0, 0, 1, 0, 0, byte(len(payload) >> 8), byte(len(payload))}
	if control {
		head[0], head[1], head[2], head[3] = 0x80, 3, 0, kind
	}
	return string(head) + payload
}

func webSocketBytes(t *testing.T, kind byte, payload string) string {
	t.Helper()
	var out strings.Builder
	head := []byte{0x80 | kind}
	switch n := len(payload); {
	case n < 126:
		head = append(head, byte(n))
	case n < 1<<16:
		head = append(head, 126, byte(n>>8), byte(n))
	default:
		head = append(head, 127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	out.Write(head)
	out.WriteString(payload)
	return out.String()
}

// masked is a client's frame.
func masked(frame string) string {
	at := 2
	switch frame[1] {
	case 126:
		at = 4
	case 127:
		at = 10
	}
	return frame[:1] + string([]byte{frame[1] | 0x80}) + frame[2:at] + "mask" + frame[at:]
}

// TestSignsOfLifeSayNothing: of what goes to and fro pings and pongs are not said by anybody, however it is cut.
func TestSignsOfLifeSayNothing(t *testing.T) {
	head := "GET /exec?command=Upgrade:%20nothing HTTP/1.1\r\nX: " + strings.Repeat("x", 1000) + "\r\nuPGRADE: "
	spdy, ws, plain := head+"SPDY/3.1\r\n\r\n", head+"websocket\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"
	ping := spdyBytes(true, 6, "\x00\x00\x00\x01")
	for name, c := range map[string]struct {
		before, what string
		says         bool
	}{
		"a ping of SPDY":              {spdy, ping, false},
		"pings of SPDY":               {spdy, ping + ping, false},
		"a stream of SPDY":            {spdy, spdyBytes(true, 1, "anything"), true},
		"data of SPDY":                {spdy, spdyBytes(false, 0, "words"), true},
		"empty data of SPDY":          {spdy, spdyBytes(false, 0, ""), true},
		"a ping after data of SPDY":   {spdy + spdyBytes(false, 0, strings.Repeat("x", 70_0)), ping, false},
		"data after a ping":           {spdy, ping + spdyBytes(false, 0, "words"), true},
		"a ping of WebSocket":         {ws, webSocketBytes(t, websocket.PingFrame, "alive"), false},
		"a pong of a client":          {ws, masked(webSocketBytes(t, websocket.PongFrame, "alive")), false},
		"data of WebSocket":           {ws, webSocketBytes(t, websocket.BinaryFrame, "words"), true},
		"a ping after data":           {ws + masked(webSocketBytes(t, websocket.BinaryFrame, strings.Repeat("x", 300))), webSocketBytes(t, websocket.PingFrame, ""), false},
		"a ping after a lot of data":  {ws + webSocketBytes(t, websocket.BinaryFrame, strings.Repeat("x", 70_000)), webSocketBytes(t, websocket.PingFrame, ""), false},
		"the end of WebSocket":        {ws, webSocketBytes(t, websocket.CloseFrame, ""), true},
		"what is in no frames":        {plain, ping, true},
		"a ping before the head ends": {head, ping, true},
	} {
		for _, size := range []int{1, 3, 1 << 20} {
			var s speech
			feed := func(text string) (said bool) {
				for text != "" {
					n := min(size, len(text))
					said = s.said([]byte(text[:n])) || said
					text = text[n:]
				}
				return said
			}
			feed(c.before)
			if got := feed(c.what); got != c.says {
				t.Errorf("%s, %d bytes at a time: %v", name, size, got)
			}
		}
	}
}

// TestStreamsEnd: a stream ends when nobody has said anything for so long, whatever signs of life there are, and after its time in any case.
func TestStreamsEnd(t *testing.T) {
	ping := spdyBytes(true, 6, "\x00\x00\x00\x01")
	for name, c := range map[string]struct {
		says  string
		every time.Duration
		want  time.Duration
		why   string
	}{
		"silent":       {"", time.Minute, time.Hour, "nothing was said"},
		"only alive":   {ping, 5 * time.Second, time.Hour, "nothing was said"},
		"for too long": {spdyBytes(false, 0, "words"), 59 * time.Minute, 5 * time.Hour, "it was open"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, conn := net.Pipe()
				var why string
				begun := time.Now()
				b, over := StreamBounds{Idle: time.Hour, Max: 5 * time.Hour}.bind(conn, func(w string, _ time.Duration) { why = w })
				defer over()
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					_, err := io.WriteString(client, "GET / HTTP/1.1\r\nUpgrade: SPDY/3.1\r\n\r\n")
					for err == nil {
						<-time.After(c.every)
						_, err = io.WriteString(client, c.says)
					}
				}()
				_, err := io.Copy(io.Discard, b)
				if took := time.Since(begun); !errors.Is(err, io.ErrClosedPipe) || took != c.want+endGrace || why != c.why {
					t.Errorf("it ended after %s: %v, since %q", took, err, why)
				}
				_ = client.Close() // whoever writes ends
				<-gone
			})
		})
	}
	t.Run("defaults", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, conn := net.Pipe()
			begun := time.Now()
			b, over := StreamBounds{}.bind(conn, func(string, time.Duration) {})
			defer over()
			if _, err := b.Read(make([]byte, 1)); err == nil || time.Since(begun) != DefaultStreamIdle+endGrace {
				t.Errorf("it ended after %s: %v", time.Since(begun), err)
			}
		})
	})
}
