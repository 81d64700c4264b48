package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
)

// ErrNotTheNode is wrapped by the refusal of a certificate of the cluster's CA that is not the
// one of the node that was to be reached.
var ErrNotTheNode = errors.New("who answers is not the node")

// KubeletConfig is the configuration of a dialler to the port of a kubelet, the one of node at
// host. Where the kubelet shows a certificate of the cluster's CA, it has to be that node's and
// for that host: neither another node nor a server or worker is taken for it, and none of them is
// shown this side's certificate. One that it has made itself says nothing about who it is, and is
// accepted unless signed is true, as Kubernetes accepts it.
// accept, which may be nil, has the last word on a node's own.
func (s *Source) KubeletConfig(node, host string, signed bool, accept func(id *Identity) error) *tls.Config {
	roots := s.current().roots
	c := s.ClientConfig(host)
	c.NextProtos = []string{"http/1.1"} // what is asked for may take the connection over
	c.InsecureSkipVerify = true         // #nosec G402 -- VerifyConnection does it
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return fmt.Errorf("%w: it shows no certificate", ErrNotTheNode)
		}
		leaf, inter := state.PeerCertificates[0], x509.NewCertPool()
		for _, cert := range state.PeerCertificates[1:] {
			inter.AddCert(cert)
		}
		// Whose it is, whether or not it is good still: one of the CA's own that is over is not taken for a stranger's.
		ours := x509.VerifyOptions{
			Roots: roots, Intermediates: inter, CurrentTime: leaf.NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		}
		var stranger x509.UnknownAuthorityError
		if _, err := leaf.Verify(ours); errors.As(err, &stranger) {
			if signed {
				return fmt.Errorf("%w %s: its certificate is not from the cluster's CA: %w", ErrNotTheNode, node, err)
			}
			return nil
		}
		ours.CurrentTime, ours.KeyUsages, ours.DNSName = s.now(), []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, host
		if _, err := leaf.Verify(ours); err != nil {
			return fmt.Errorf("%w %s: %w", ErrNotTheNode, node, err)
		}
		id, err := IdentityOf(leaf)
		if err != nil || id.Name != node || !slices.Contains(id.Groups, NodesGroup) {
			return fmt.Errorf("%w %s: its certificate is that of %q", ErrNotTheNode, node, leaf.Subject.CommonName)
		}
		if accept != nil {
			return accept(&id)
		}
		return nil
	}
	return c
}
