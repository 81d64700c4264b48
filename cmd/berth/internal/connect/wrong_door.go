package connect

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// What a server is that answers, and is not the API.
var (
	errSpeaksTLS = errors.New("it speaks TLS")
	errSpeaksRPC = errors.New("it speaks RPC")
)

// certificateAlerts are those of TLS by which a server refuses a client's certificate, or wants one.
func certificateAlerts() []tls.AlertError {
	const (
		badCertificate, unsupportedCertificate, revoked, expired, unknown tls.AlertError = 42, 43, 44, 45, 46
		unknownCA, accessDenied, required                                 tls.AlertError = 48, 49, 116
	)
	return []tls.AlertError{badCertificate, unsupportedCertificate, revoked, expired, unknown, unknownCA, accessDenied, required}
}

// refusal is what a server says that does not accept the client's certificate; nil if it says something else. It has done nothing:
// it reads requests when it has seen who asks, although in TLS 1.3 the client may have sent one by then.
func refusal(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" {
		return nil
	}
	// The type of an alert that comes over TCP is crypto/tls' own; its text is that of the one that is not.
	if slices.ContainsFunc(certificateAlerts(), func(a tls.AlertError) bool { return a.Error() == op.Err.Error() }) {
		return op.Err
	}
	return nil
}

// refused asks whether a server accepts the certificate, over a connection on which nothing is sent: where a request is, that the connection is
// closed may be noticed before why. nil: it does, or does not say.
func (f *failover) refused(ctx context.Context, target *url.URL) error {
	t := transportOf(f.next)
	if t == nil || t.TLSClientConfig == nil || target.Scheme != "https" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	config := t.TLSClientConfig.Clone()
	config.NextProtos = []string{"h2", "http/1.1"} // of the first the server speaks first, and nobody waits
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", target.Host)
	if err != nil {
		if refusal(err) != nil {
			return err
		}
		return nil
	}
	defer func() { _ = conn.Close() }()                 // nothing was said
	context.AfterFunc(ctx, func() { _ = conn.Close() }) // that ends the read
	if _, err = conn.Read(make([]byte, 1)); refusal(err) != nil {
		return err
	}
	return nil
}

// isProxied: somebody behind the API may have answered.
func isProxied(path string) bool { return slices.Contains(strings.Split(path, "/"), "proxy") }

// wrongDoor says what has answered that is not the API, where that shows; the answer is closed then. What is behind the API may speak RPC, too,
// and has done something.
func wrongDoor(resp *http.Response, target *url.URL, path string) error {
	var err error
	switch {
	case resp.StatusCode == http.StatusUnsupportedMediaType && resp.Header.Get("Content-Type") == "application/grpc" && !isProxied(path):
		err = errSpeaksRPC
	case target.Scheme == "http" && resp.StatusCode == http.StatusBadRequest && resp.ProtoMajor == 1 && resp.ProtoMinor == 0 && len(resp.Header) == 0:
		// net/http's answer to who does not speak TLS has a version that it never speaks otherwise, and no header.
		if line, _ := bufio.NewReader(resp.Body).ReadString('\n'); strings.Contains(line, "HTTPS") {
			err = errSpeaksTLS
		}
	}
	if err != nil {
		_ = resp.Body.Close() // nobody reads it
	}
	return err
}
