package pki

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

func TestParseJoinToken(t *testing.T) {
	ca, err := NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	made, err := NewJoinToken(ca.CertPEM())
	if err != nil {
		t.Fatal(err)
	}
	read, err := ParseJoinToken(made.String())
	if err != nil || read != made {
		t.Errorf("%v is read as %v: %v", made, read, err)
	}
	for _, bad := range []string{"", made.Bearer(), made.String() + "0", strings.ToUpper(made.String()), "x" + made.String(), " " + made.String()} {
		if _, err := ParseJoinToken(bad); !errors.Is(err, ErrJoinToken) || bad != "" && strings.Contains(err.Error(), made.Secret) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestMeet: a token leads to servers of its own authority and to nobody else, whoever else they
// show the certificate of.
func TestMeet(t *testing.T) {
	own, err := NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	token, err := NewJoinToken(own.CertPEM())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		ca    *CA
		r     Request
		shows []byte
		good  bool
	}{
		{"a server", own, Request{Kind: Server, Name: "s1"}, own.CertPEM(), true},
		{"a worker", own, Request{Kind: Worker, Name: "w1"}, own.CertPEM(), false},
		{"another cluster's server", foreign, Request{Kind: Server, Name: "s1"}, foreign.CertPEM(), false},
		{"another cluster's server that shows this CA", foreign, Request{Kind: Server, Name: "s1"}, own.CertPEM(), false},
		{"a server that shows both", own, Request{Kind: Server, Name: "s1"}, append(foreign.CertPEM(), own.CertPEM()...), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pair, err := tt.ca.Issue(time.Now(), tt.r)
			if err != nil {
				t.Fatal(err)
			}
			source, err := FromPEM(tt.shows, pair)
			if err != nil {
				t.Fatal(err)
			}
			config, err := source.ServerConfig(tls.VerifyClientCertIfGiven)
			if err != nil {
				t.Fatal(err)
			}
			var found []byte
			client, server := net.Pipe()
			go func() {
				_ = tls.Server(server, config).Handshake() // what the client says of it is asked
				_ = server.Close()
			}()
			err = tls.Client(client, token.Meet(func(caPEM []byte) { found = caPEM })).Handshake()
			_ = client.Close()
			switch {
			case tt.good && (err != nil || string(found) != string(own.CertPEM())):
				t.Errorf("%v, and found %q", err, found)
			case !tt.good && (!errors.Is(err, ErrOtherAuthority) || found != nil):
				t.Errorf("%v, and found %q", err, found)
			}
		})
	}
}

// TestNodeIdentity: a node by request is a worker; who has its name or its group alone is a client.
func TestNodeIdentity(t *testing.T) {
	ca, err := NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		user   string
		groups []string
		kind   Kind
		name   string
	}{
		{"system:node:n1", []string{"system:nodes"}, Worker, "n1"},
		{"system:node:n1", []string{"system:nodes", "people"}, Client, "system:node:n1"},
		{"system:node:n1", nil, Client, "system:node:n1"},
		{"system:node:N 1", []string{"system:nodes"}, Client, "system:node:N 1"},
		{"n1", []string{"system:nodes"}, Client, "n1"},
	} {
		pair, err := ca.Issue(time.Now(), Request{Kind: Client, Name: tt.user, Groups: tt.groups})
		if err != nil {
			t.Fatal(err)
		}
		cert, err := parseCert(pair.CertPEM)
		if err != nil {
			t.Fatal(err)
		}
		if id, err := IdentityOf(cert); err != nil || id.Kind != tt.kind || id.Name != tt.name {
			t.Errorf("%s of %v is %v: %v", tt.user, tt.groups, id, err)
		}
	}
}
