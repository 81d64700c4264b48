package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/net/http2"

	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/handshake"
)

// Limits of a connection; Kubernetes has the same.
const (
	maxHeaderBytes    = 1 << 20
	idleTimeout       = 90 * time.Second
	readHeaderTimeout = 32 * time.Second
	streamBufferBytes = 256 << 10
	maxStreamsPerConn = 250
)

// newHTTPServer serves a handler over TLS, with HTTP/2.
func newHTTPServer(handler http.Handler, config *tls.Config, logger hclog.Logger) (*http.Server, error) {
	s := &http.Server{
		Handler:           handler,
		TLSConfig:         config.Clone(),
		MaxHeaderBytes:    maxHeaderBytes,
		IdleTimeout:       idleTimeout,
		ReadHeaderTimeout: readHeaderTimeout,
		// A failed handshake is the client's trouble, not the server's.
		ErrorLog: logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	err := http2.ConfigureServer(s, &http2.Server{
		IdleTimeout:                  idleTimeout,
		MaxUploadBufferPerStream:     streamBufferBytes,
		MaxReadFrameSize:             streamBufferBytes,
		MaxConcurrentStreams:         maxStreamsPerConn,
		MaxUploadBufferPerConnection: streamBufferBytes * maxStreamsPerConn,
	})
	if err != nil {
		return nil, fmt.Errorf("setting up HTTP/2: %w", err)
	}
	if get := s.TLSConfig.GetConfigForClient; get != nil {
		s.TLSConfig.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := get(hello)
			if c != nil {
				c = c.Clone()
				c.NextProtos = s.TLSConfig.NextProtos
			}
			return c, err
		}
	}
	return s, nil
}

// goAwayGrace is how long clients have to learn that their connection takes no
// new requests before their watches end. One that asked again on the old
// connection would be told of a watch without events, and list everything anew
// instead of resuming elsewhere.
const goAwayGrace = 100 * time.Millisecond

// serve runs until the context ends, then stops accepting, ends the watches and
// lets what else is in flight end.
func serve(ctx context.Context, s *http.Server, l net.Listener, gate *handshake.Gate, timeout time.Duration, endWatches func()) error {
	failed := make(chan error, 1)
	listener := handshake.NewListener(l, s.TLSConfig, gate, s.ErrorLog.Printf)
	go func() { failed <- guard.Caught(func() error { return s.Serve(listener) }) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serving the API on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	defer time.AfterFunc(goAwayGrace, endWatches).Stop()
	err := s.Shutdown(grace)
	if err != nil {
		err = errors.Join(fmt.Errorf("requests were still running after %s: %w", timeout, err), s.Close())
	}
	<-failed
	return err
}
