package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"time"
)

const (
	// DefaultCAValidity and DefaultValidity are used where a validity of
	// zero is given.
	DefaultCAValidity = 10 * 365 * 24 * time.Hour
	DefaultValidity   = 365 * 24 * time.Hour

	// clockSkew is how far a peer's clock may be behind ours.
	clockSkew = 5 * time.Minute

	certBlock = "CERTIFICATE"
	keyBlock  = "PRIVATE KEY"
)

// CA is a certificate authority with its private key in memory.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
	pair Pair
}

// Pair is a certificate and its private key, PEM-encoded.
type Pair struct {
	CertPEM []byte
	KeyPEM  []byte
}

// Request says which certificate to issue.
type Request struct {
	Kind Kind
	// Name is the node's name, or the user's for a client.
	Name string
	// Groups are a client's groups; other kinds must leave them empty.
	Groups []string
	// DNSNames and IPs are added to a server's own (its name, localhost,
	// the loopback addresses, ServerDNSName); other kinds must leave them
	// empty, since they are never dialled.
	DNSNames []string
	IPs      []net.IP
	// Validity defaults to DefaultValidity and never outlasts the CA.
	Validity time.Duration
}

// NewCA makes a CA in memory. validity may be zero.
func NewCA(now time.Time, validity time.Duration) (*CA, error) {
	if validity < 0 {
		return nil, fmt.Errorf("making a CA: validity %s is negative", validity)
	}
	if validity == 0 {
		validity = DefaultCAValidity
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the CA's key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "Berth CA " + serial.Text(16)[:8]},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(validity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the CA's certificate: %w", err)
	}
	pair, err := encodePair(der, key)
	if err != nil {
		return nil, err
	}
	return ParseCA(pair)
}

// ParseCA reads a CA from its certificate and key.
func ParseCA(pair Pair) (*CA, error) {
	cert, err := parseCert(pair.CertPEM)
	if err != nil {
		return nil, fmt.Errorf("reading the CA's certificate: %w", err)
	}
	if !cert.IsCA {
		return nil, fmt.Errorf("reading the CA's certificate: %q is not a CA", cert.Subject)
	}
	block, _ := pem.Decode(pair.KeyPEM)
	if block == nil || block.Type != keyBlock {
		return nil, fmt.Errorf("reading the CA's key: no PEM block %q in it", keyBlock)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading the CA's key: %w", err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("reading the CA's key: it is a %T, and only ECDSA keys are used", parsed)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("the CA's key does not belong to its certificate")
	}
	return &CA{cert: cert, key: key, pair: pair}, nil
}

// CertPEM is the CA's certificate: what every member trusts.
func (c *CA) CertPEM() []byte { return slices.Clone(c.pair.CertPEM) }

// Issue signs a new certificate with a new key.
func (c *CA) Issue(now time.Time, r Request) (Pair, error) {
	if err := r.check(); err != nil {
		return Pair{}, err
	}
	if err := checkDates("the CA's certificate", c.cert, now); err != nil {
		return Pair{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("making the key of %s %s: %w", r.Kind, r.Name, err)
	}
	serial, err := newSerial()
	if err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, c.template(now, serial, r), c.cert, key.Public(), c.key)
	if err != nil {
		return Pair{}, fmt.Errorf("signing the certificate of %s %s: %w", r.Kind, r.Name, err)
	}
	return encodePair(der, key)
}

func (c *CA) template(now time.Time, serial *big.Int, r Request) *x509.Certificate {
	validity := r.Validity
	if validity == 0 {
		validity = DefaultValidity
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(validity),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if t.NotAfter.After(c.cert.NotAfter) {
		t.NotAfter = c.cert.NotAfter
	}
	switch r.Kind {
	case Server:
		t.Subject = pkix.Name{CommonName: serverCN + r.Name, Organization: []string{ServersGroup}}
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		t.DNSNames = dedupe(slices.Concat([]string{ServerDNSName, r.Name, "localhost"}, serviceDNSNames(), r.DNSNames))
		t.IPAddresses = append([]net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, r.IPs...)
	case Worker:
		t.Subject = pkix.Name{CommonName: workerCN + r.Name, Organization: []string{WorkersGroup}}
	case Client:
		t.Subject = pkix.Name{CommonName: r.Name, Organization: r.Groups}
	}
	return t
}

func (r Request) check() error {
	if r.Validity < 0 {
		return fmt.Errorf("issuing a certificate: validity %s is negative", r.Validity)
	}
	switch r.Kind {
	case Server, Worker:
		if err := checkNodeName(r.Name); err != nil {
			return fmt.Errorf("issuing a %s certificate: %w", r.Kind, err)
		}
		if len(r.Groups) > 0 {
			return fmt.Errorf("issuing a %s certificate: only a client has groups", r.Kind)
		}
	case Client:
		for _, s := range append([]string{r.Name}, r.Groups...) {
			if s == "" || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }) {
				return fmt.Errorf("issuing a client certificate: %q is no name of a user or group", s)
			}
			if strings.HasPrefix(s, reservedPrefix) {
				return fmt.Errorf("issuing a client certificate: %q begins with %q, which is reserved for servers and workers", s, reservedPrefix)
			}
		}
	default:
		return fmt.Errorf("issuing a certificate: unknown kind %q (server, worker, client)", r.Kind)
	}
	if r.Kind != Server && len(r.DNSNames)+len(r.IPs) > 0 {
		return fmt.Errorf("issuing a %s certificate: only a server has DNS names and IP addresses", r.Kind)
	}
	return nil
}

// checkNodeName demands what Kubernetes demands of a node's name: a DNS-1123
// subdomain.
func checkNodeName(name string) error {
	bad := name == "" || len(name) > 253
	for label := range strings.SplitSeq(name, ".") {
		edge := strings.Trim(label, "-") != label
		odd := strings.ContainsFunc(label, func(c rune) bool {
			return c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z')
		})
		bad = bad || label == "" || edge || odd
	}
	if bad {
		return fmt.Errorf("%q is no name of a node: lower case letters, digits, '-' and '.', at most 253", name)
	}
	return nil
}

func dedupe(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func newSerial() (*big.Int, error) {
	// 127 random bits with the highest set: positive, never short.
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, fmt.Errorf("making a serial number: %w", err)
	}
	return n.SetBit(n, 126, 1), nil
}

func encodePair(der []byte, key *ecdsa.PrivateKey) (Pair, error) {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encoding a key: %w", err)
	}
	return Pair{
		CertPEM: pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: der}),
		KeyPEM:  pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: raw}),
	}, nil
}

func parseCert(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != certBlock {
		return nil, fmt.Errorf("no PEM block %q in it", certBlock)
	}
	return x509.ParseCertificate(block.Bytes)
}

// DateError says that a certificate is used outside of its validity.
type DateError struct {
	// What names the certificate: its file where it has one.
	What      string
	Subject   string
	NotBefore time.Time
	NotAfter  time.Time
	// Expired tells an expired certificate from one not yet valid.
	Expired bool
}

func (e *DateError) Error() string {
	if e.Expired {
		return fmt.Sprintf("%s (%s) expired on %s", e.What, e.Subject, e.NotAfter.UTC().Format(time.RFC1123))
	}
	return fmt.Sprintf("%s (%s) is not valid before %s; is the clock right?", e.What, e.Subject, e.NotBefore.UTC().Format(time.RFC1123))
}

func checkDates(what string, c *x509.Certificate, now time.Time) error {
	if now.After(c.NotAfter) || now.Before(c.NotBefore) {
		return &DateError{What: what, Subject: c.Subject.CommonName, NotBefore: c.NotBefore, NotAfter: c.NotAfter, Expired: now.After(c.NotAfter)}
	}
	return nil
}
