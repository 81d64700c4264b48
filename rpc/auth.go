package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/pki"
)

type identityKey struct{}

// identify finds who calls. A connection on which a certificate was shown that has ended is closed: whoever has another one by now
// comes back with it, where a refusal would be taken for the last word.
func (s *Server) identify(ctx context.Context) (*pki.Identity, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, fmt.Errorf("%w: the caller is unknown", ErrForbidden)
	}
	info, ok := p.AuthInfo.(shownInfo)
	if !ok {
		return nil, fmt.Errorf("%w: the caller has shown no certificate", ErrForbidden)
	}
	id, err := pki.PeerIdentity(info.State.VerifiedChains, s.ends.now())
	if ended := new(pki.DateError); errors.As(err, &ended) && ended.Expired {
		info.close()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	return &id, nil
}

// authorize asks the table of who may call what. It is asked when a call's header
// has come, before anything of its message is read or kept.
func (s *Server) authorize(ctx context.Context, call *tap.Info) (context.Context, error) {
	id, err := s.identify(ctx)
	// What a client's certificate says of groups is for the API.
	if err == nil && (id.Kind == pki.Client || !access.MayCall(id.Groups, call.FullMethodName)) {
		err = fmt.Errorf("%w: %s may not call %s", ErrForbidden, id.User, call.FullMethodName)
	}
	if err == nil && s.config.Refuse != nil {
		err = s.config.Refuse(id)
	}
	if err != nil {
		return ctx, toStatus(err)
	}
	return context.WithValue(ctx, identityKey{}, id), nil
}

// mayBeNode demands that a worker speaks for the node of its certificate. A
// server may run a worker of its own name.
func mayBeNode(ctx context.Context, node string) error {
	id, ok := ctx.Value(identityKey{}).(*pki.Identity)
	if !ok {
		return fmt.Errorf("%w: the caller is unknown", ErrForbidden)
	}
	if id.Name != node {
		return fmt.Errorf("%w: %s may not speak for node %s", ErrForbidden, id.User, node)
	}
	return nil
}

// errBroke: what a call did before it panicked is not undone.
var errBroke = errors.New("the server broke over this call, which is a mistake of Berth's: what came of it is not known")

// answer makes errors what travels, and a panic one of them.
func (s *Server) answer(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (resp any, err error) {
	err = s.config.Guard.Call("rpc "+info.FullMethod, errBroke, func() (err error) {
		resp, err = h(ctx, req)
		return err
	})
	return resp, toStatus(err)
}

func (s *Server) stream(srv any, st grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	return toStatus(s.config.Guard.Call("rpc "+info.FullMethod, errBroke, func() error { return h(srv, st) }))
}

// serverConfig demands a certificate of the cluster's CA from every peer.
func serverConfig(src *pki.Source) (*tls.Config, error) {
	if err := src.Verify(x509.ExtKeyUsageServerAuth); err != nil {
		return nil, err
	}
	cfg, err := src.ServerConfig(tls.RequireAndVerifyClientCert)
	if err != nil {
		return nil, err
	}
	// Every handshake has the certificates of its moment, and HTTP/2.
	newest := cfg.GetConfigForClient
	cfg.NextProtos = []string{"h2"}
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c, err := newest(hello)
		if c != nil {
			c.NextProtos = []string{"h2"}
		}
		return c, err
	}
	return cfg, nil
}

// clientCreds makes each handshake with the certificates of that moment, and
// says clearly when it fails because the other side's has expired.
type clientCreds struct {
	credentials.TransportCredentials
	src *pki.Source
}

func clientCredentials(src *pki.Source) (credentials.TransportCredentials, error) {
	if err := src.Verify(x509.ExtKeyUsageClientAuth); err != nil {
		return nil, err
	}
	return &clientCreds{credentials.NewTLS(src.ClientConfig(pki.ServerDNSName)), src}, nil
}

func (c *clientCreds) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	fresh := credentials.NewTLS(c.src.ClientConfig(pki.ServerDNSName))
	conn, info, err := fresh.ClientHandshake(ctx, authority, raw)
	if err == nil {
		return conn, info, nil
	}
	if own := c.src.Err(); own != nil {
		return nil, nil, fmt.Errorf("%w (the handshake failed: %w)", own, err)
	}
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().After(invalid.Cert.NotAfter) {
		err = &pki.DateError{
			What: "the certificate of the server at " + raw.RemoteAddr().String(), Subject: invalid.Cert.Subject.CommonName,
			NotBefore: invalid.Cert.NotBefore, NotAfter: invalid.Cert.NotAfter, Expired: true,
		}
	}
	return nil, nil, err
}

func (c *clientCreds) Clone() credentials.TransportCredentials {
	return &clientCreds{c.TransportCredentials.Clone(), c.src}
}
