package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"time"
)

// JoinToken is what a machine is given that is to join: by ID and Secret the servers know it,
// by Authority it knows the servers. Written it is "ID.SECRET.AUTHORITY".
type JoinToken struct {
	ID, Secret string
	// Authority is the SHA-256 of the public key of the cluster's CA, in hex.
	Authority string
}

var joinTokenForm = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})\.([0-9a-f]{64})$`)

// ErrJoinToken is wrapped by the refusal of what is no join token. It never has the token.
var ErrJoinToken = errors.New("it is no join token")

// NewJoinToken makes one for the cluster of a CA.
func NewJoinToken(caPEM []byte) (JoinToken, error) {
	cert, err := parseCert(caPEM)
	if err != nil {
		return JoinToken{}, fmt.Errorf("reading the CA's certificate: %w", err)
	}
	t := JoinToken{Authority: authorityOf(cert)}
	if t.ID, err = randomText(6); err == nil {
		t.Secret, err = randomText(16)
	}
	return t, err
}

// ParseJoinToken reads one.
func ParseJoinToken(s string) (JoinToken, error) {
	parts := joinTokenForm.FindStringSubmatch(s)
	if parts == nil {
		return JoinToken{}, fmt.Errorf("%w: it is written ID.SECRET.AUTHORITY, as `berth token create` prints it", ErrJoinToken)
	}
	return JoinToken{ID: parts[1], Secret: parts[2], Authority: parts[3]}, nil
}

// String is the whole token.
func (t JoinToken) String() string { return t.Bearer() + "." + t.Authority }

// Bearer is the part that servers are shown.
func (t JoinToken) Bearer() string { return t.ID + "." + t.Secret }

func randomText(n int) (string, error) {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	out := make([]byte, n)
	for i := range out {
		at, err := rand.Int(rand.Reader, big.NewInt(int64(len(letters))))
		if err != nil {
			return "", fmt.Errorf("making a token: %w", err)
		}
		out[i] = letters[at.Int64()]
	}
	return string(out), nil
}

func authorityOf(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// ErrOtherAuthority is wrapped by the refusal of a server that is not of the token's cluster.
var ErrOtherAuthority = errors.New("the server is not of the cluster that the token is for")

// Meet is the configuration of a first connection to a server: it succeeds only with one whose
// certificate is from the token's authority, and found is then given the authority's
// certificate. Servers show it with their own.
func (t JoinToken) Meet(found func(caPEM []byte)) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: ServerDNSName,
		InsecureSkipVerify: true, // #nosec G402 -- VerifyConnection does it, with the authority that it finds
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return fmt.Errorf("%w: it shows no certificate", ErrOtherAuthority)
			}
			for _, ca := range s.PeerCertificates[1:] {
				if !ca.IsCA || authorityOf(ca) != t.Authority {
					continue
				}
				roots := x509.NewCertPool()
				roots.AddCert(ca)
				_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: ServerDNSName, CurrentTime: time.Now()})
				if err != nil {
					return fmt.Errorf("%w: %w", ErrOtherAuthority, err)
				}
				found(pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: ca.Raw}))
				return nil
			}
			return fmt.Errorf("%w: nothing that it shows has the key %s…", ErrOtherAuthority, t.Authority[:12])
		},
	}
}

// parseCerts reads every certificate of a file.
func parseCerts(data []byte) (der [][]byte) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return der
		}
		if block.Type == certBlock {
			der = append(der, bytes.Clone(block.Bytes))
		}
	}
}
