package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind is what a certificate's holder is to the cluster.
type Kind string

// The kinds of certificate.
const (
	Server Kind = "server"
	Worker Kind = "worker"
	Client Kind = "client"
)

const (
	// ServerDNSName is a subject alternative name of every server
	// certificate and of no other.
	ServerDNSName = "server.berth.internal"

	// ServiceDNSName is that of the service that stands for the API, as pods find it by name;
	// every server certificate has its shorter forms, too, and that with the usual domain.
	ServiceDNSName = "kubernetes.default.svc"

	// ServersGroup and WorkersGroup are the O of the two kinds of node.
	ServersGroup = "berth:servers"
	WorkersGroup = "berth:workers"

	// NodesGroup is the O of a node whose certificate was made by request, as Kubernetes has it.
	NodesGroup = "system:nodes"

	reservedPrefix = "berth:"
	nodeCN         = "system:node:"
	serverCN       = "berth:server:"
	workerCN       = "berth:worker:"
)

// IsServerName: the name, in a certificate, makes its holder a server of the cluster to
// members or to clients of the API.
func IsServerName(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name == ServerDNSName || name == "localhost" || strings.HasPrefix(name, "*") || slices.Contains(serviceDNSNames(), name)
}

// serviceDNSNames are the API's, as pods find it.
func serviceDNSNames() []string {
	return []string{"kubernetes", "kubernetes.default", ServiceDNSName, ServiceDNSName + ".cluster.local"}
}

// Identity is who a verified certificate speaks for.
type Identity struct {
	Kind Kind
	// Name is the node's name, or the user's for a client.
	Name string
	// User is the certificate's CN: what the API knows the holder as.
	User   string
	Groups []string
	// Issued is when the certificate was made.
	Issued time.Time
	// Ends is when it is good no more, or one of those that vouch for it.
	Ends time.Time
}

// ErrIdentity is wrapped by every error of IdentityOf.
var ErrIdentity = errors.New("certificate names nobody")

// ServerUser is what a server of a name is known as.
func ServerUser(name string) string { return serverCN + name }

// NodeSubject is the subject of the certificate that a node asks for.
func NodeSubject(name string) pkix.Name {
	return pkix.Name{CommonName: nodeCN + name, Organization: []string{NodesGroup}}
}

// IdentityOf reads a certificate's subject. It does not verify the
// certificate: the caller passes one that the TLS handshake has verified.
func IdentityOf(cert *x509.Certificate) (Identity, error) {
	id := Identity{User: cert.Subject.CommonName, Groups: cert.Subject.Organization, Issued: cert.NotBefore.Add(clockSkew), Ends: cert.NotAfter}
	if id.User == "" {
		return Identity{}, fmt.Errorf("%w: its subject %q has no CN", ErrIdentity, cert.Subject)
	}
	if name, ok := strings.CutPrefix(id.User, serverCN); ok {
		id.Kind, id.Name = Server, name
		return id, requireGroup(id, ServersGroup)
	}
	if name, ok := strings.CutPrefix(id.User, workerCN); ok {
		id.Kind, id.Name = Worker, name
		return id, requireGroup(id, WorkersGroup)
	}
	if name, ok := strings.CutPrefix(id.User, nodeCN); ok && checkNodeName(name) == nil && slices.Equal(id.Groups, []string{NodesGroup}) {
		id.Kind, id.Name = Worker, name
		return id, nil
	}
	for _, s := range append([]string{id.User}, id.Groups...) {
		if strings.HasPrefix(s, reservedPrefix) {
			return Identity{}, fmt.Errorf("%w: %q is reserved for servers and workers", ErrIdentity, s)
		}
	}
	id.Kind, id.Name = Client, id.User
	return id, nil
}

// requireGroup demands that a node's CN and O agree: one alone is not enough.
func requireGroup(id Identity, want string) error {
	if id.Name == "" || len(id.Groups) != 1 || id.Groups[0] != want {
		return fmt.Errorf("%w: CN %q needs a name and O %q, and has O %q", ErrIdentity, id.User, want, id.Groups)
	}
	return nil
}

// PeerIdentity is IdentityOf for the peer of a TLS connection whose
// certificate chain has been verified when the connection was made, and is good
// still: a connection may be older than that. One that is not gives a *DateError.
func PeerIdentity(chains [][]*x509.Certificate, now time.Time) (Identity, error) {
	if len(chains) == 0 || len(chains[0]) == 0 {
		return Identity{}, fmt.Errorf("%w: the peer has sent no certificate that was verified", ErrIdentity)
	}
	id, err := IdentityOf(chains[0][0])
	if err != nil {
		return Identity{}, err
	}
	// One good chain is enough, and a chain is as good as each of its certificates.
	id.Ends = time.Time{}
	for _, chain := range chains {
		ends, wrong := endOf(chain, now)
		switch {
		case wrong != nil:
			err = wrong
		case ends.After(id.Ends):
			id.Ends = ends
		}
	}
	if id.Ends.IsZero() {
		return Identity{}, err
	}
	return id, nil
}

// endOf is when the first certificate of a chain ends that is good now.
func endOf(chain []*x509.Certificate, now time.Time) (ends time.Time, err error) {
	for i, c := range chain {
		if err := checkDates("the peer's certificate", c, now); err != nil {
			return time.Time{}, err
		}
		if i == 0 || c.NotAfter.Before(ends) {
			ends = c.NotAfter
		}
	}
	return ends, nil
}
