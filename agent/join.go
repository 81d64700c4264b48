package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/pki"
)

// Joining is how a worker gets what it needs to be one: a token, and where servers' API is.
type Joining struct {
	// Token is as `berth token create` prints it; empty: the worker has joined before.
	Token string
	// API are addresses of servers' API, host:port.
	API []string
}

// What a worker that has joined by a token keeps beside the CA's certificate. The certificate
// and its key are one file, so that they are never two that do not belong together.
const (
	nodeFile    = "node.pem"
	membersFile = "members.json"
)

const (
	// joinPause is how long a worker waits that could not join, before it tries again.
	joinPause = 3 * time.Second
	// meetTimeout bounds one connection, or one question to a server that is not about a
	// certificate.
	meetTimeout = 10 * time.Second
	// maxJoinBytes bounds what a server answers.
	maxJoinBytes = 1 << 20
)

// errNotLetIn is wrapped by why a worker cannot join, whatever it tries.
var errNotLetIn = errors.New("this worker is not let in")

// nodeFiles are those of a worker that has joined.
func nodeFiles(dir string) pki.Files {
	return pki.Files{CA: filepath.Join(dir, pki.CAFile), Cert: filepath.Join(dir, nodeFile), Key: filepath.Join(dir, nodeFile)}
}

// joinCluster gives a worker without certificates those that it has joined by before, or joins
// by its token. It goes on until it has, or is told that it must not.
func (c *Config) joinCluster(ctx context.Context) error {
	dir := TLSDir(c.DataDir)
	source, err := pki.Open(nodeFiles(dir))
	var expired *pki.DateError
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &expired) && expired.Expired:
		if c.Joining.Token == "" {
			return fmt.Errorf("%w (%w)", needsCertificate("a worker", "worker", c.Name), err)
		}
		if source, err = c.enter(ctx, dir); err != nil {
			return err
		}
	default:
		return damagedNode(dir, err)
	}
	if err := source.Verify(x509.ExtKeyUsageClientAuth); err != nil {
		return damagedNode(dir, err)
	}
	id, err := source.Identity()
	if err != nil {
		return damagedNode(dir, err)
	}
	if id.Kind != pki.Worker || id.Name != c.Name {
		return fmt.Errorf("%s has the certificate of %s, and this agent is %q: give it back its name, or another data_dir", dir, id.User, c.Name)
	}
	if c.CA, err = os.ReadFile(nodeFiles(dir).CA); err != nil {
		return fmt.Errorf("reading the CA: %w", err)
	}
	c.TLS, c.joined = source, true
	members, err := c.learn(ctx, dir)
	if err != nil {
		return err
	}
	c.EncryptionKey = cmp.Or(c.EncryptionKey, members.GossipKey)
	c.Join = slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.Join, members.Gossip))))
	c.Joining.API = slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.Joining.API, members.API))))
	return nil
}

func damagedNode(dir string, err error) error {
	files := nodeFiles(dir)
	return fmt.Errorf("what this worker has joined by: %w; put %s and %s back from a copy, or remove both and give it a new token (`berth token create`)", err, files.CA, files.Cert)
}

// enter gets the worker's first certificate.
func (c *Config) enter(ctx context.Context, dir string) (*pki.Source, error) {
	token, err := pki.ParseJoinToken(c.Joining.Token)
	if err != nil {
		return nil, fmt.Errorf("join_token: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of the certificate: %w", err)
	}
	c.Logger.Info("this worker has no certificate yet, and joins by its token", "servers", strings.Join(c.Joining.API, ", "))
	for {
		var errs []error
		for _, addr := range c.Joining.API {
			err := c.enterBy(ctx, dir, addr, token)
			if err == nil {
				return pki.Open(nodeFiles(dir))
			}
			if errors.Is(err, errNotLetIn) {
				return nil, err
			}
			errs = append(errs, fmt.Errorf("by the server at %s: %w", addr, err))
		}
		c.Logger.Warn("cannot join yet; trying again", "error", oneLine(errs))
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), errors.Join(errs...))
		case <-time.After(joinPause):
		}
	}
}

// oneLine is what went wrong, for the log: a line each would be many of its lines.
func oneLine(errs []error) string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// enterBy does it by way of one server.
func (c *Config) enterBy(ctx context.Context, dir, addr string, token pki.JoinToken) error {
	ca, err := meet(ctx, addr, token)
	if errors.Is(err, pki.ErrOtherAuthority) {
		return fmt.Errorf("%w: %w", errNotLetIn, err)
	}
	if err != nil {
		return err
	}
	config := apiConfig(addr, ca)
	config.BearerToken = token.Bearer()
	pair, err := requestCertificate(ctx, config, c.Name, c.tellWaiting(addr))
	if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		return fmt.Errorf("%w: %w", errNotLetIn, err)
	}
	if err != nil {
		return err
	}
	if err := checkPair(ca, pair, c.Name); err != nil {
		return err
	}
	if err := atomicfile.Write(nodeFiles(dir).CA, ca, 0o644); err != nil {
		return fmt.Errorf("keeping the CA: %w", err)
	}
	if err := writeNode(dir, pair); err != nil {
		return err
	}
	c.Logger.Info("this worker has joined: it has a certificate of its own", "by", addr, "directory", dir)
	return nil
}

func writeNode(dir string, pair pki.Pair) error {
	if err := atomicfile.Write(nodeFiles(dir).Cert, slices.Concat(pair.CertPEM, pair.KeyPEM), 0o600); err != nil {
		return fmt.Errorf("keeping the certificate: %w", err)
	}
	return nil
}

// meet finds the CA of a server whose CA has the key that the token names. The server is told
// nothing before that.
func meet(ctx context.Context, addr string, token pki.JoinToken) (ca []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, meetTimeout)
	defer cancel()
	transport := &http.Transport{
		TLSClientConfig: token.Meet(func(caPEM []byte) { ca = caPEM }), DialContext: (&net.Dialer{}).DialContext, DisableKeepAlives: true,
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr+"/version", nil)
	if err != nil {
		return nil, err
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	return ca, resp.Body.Close()
}

// apiConfig is how a member of the cluster asks a server, which it knows by the CA alone.
func apiConfig(addr string, ca []byte) *rest.Config {
	return &rest.Config{
		Host: "https://" + addr, Timeout: meetTimeout, QPS: -1, UserAgent: "berth-agent",
		TLSClientConfig: rest.TLSClientConfig{CAData: ca, ServerName: pki.ServerDNSName},
	}
}

// nodeConfig is apiConfig for a worker that has a certificate.
func nodeConfig(addr, dir string) (*rest.Config, error) {
	ca, err := os.ReadFile(nodeFiles(dir).CA)
	if err != nil {
		return nil, err
	}
	pair, err := os.ReadFile(nodeFiles(dir).Cert)
	if err != nil {
		return nil, err
	}
	config := apiConfig(addr, ca)
	config.CertData, config.KeyData = pair, pair
	return config, nil
}

// learn asks a server where the others are. If none answers, what was learnt before counts.
func (c *Config) learn(ctx context.Context, dir string) (*operator.Join, error) {
	file := filepath.Join(dir, membersFile)
	before, damage := readMembers(file)
	var errs []error
	for _, addr := range slices.Concat(c.Joining.API, before.API) {
		now, err := askJoin(ctx, addr, dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("asking %s: %w", addr, err))
			continue
		}
		return now, writeMembers(file, now)
	}
	if damage != nil {
		errs = append(errs, damage)
	}
	if len(errs) == 0 && len(before.Gossip) == 0 {
		return nil, fmt.Errorf("it is not known where the servers are: %s is missing, and is made anew when the addresses of servers are configured (join)", file)
	}
	if len(before.Gossip) == 0 {
		return nil, fmt.Errorf("no server tells where the others are: %w", errors.Join(errs...))
	}
	c.Logger.Warn("no server tells where the others are; going by what was known before", "error", oneLine(errs))
	return before, nil
}

// keptMembers is what a worker keeps of where the servers are: with a checksum, for the key of gossip is in it.
type keptMembers struct {
	operator.Join
	SHA256 string `json:"sha256,omitempty"`
}

// readMembers reads what was learnt before. Of a file that is damaged nothing counts: the servers tell all of it again.
func readMembers(file string) (*operator.Join, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return &operator.Join{}, nil
	}
	if err != nil {
		return &operator.Join{}, fmt.Errorf("%s can not be read, and is made anew once it is removed and a server answers: %w", file, err)
	}
	var kept keptMembers
	err = json.Unmarshal(b, &kept)
	if err == nil && kept.SHA256 != "" { // there was none in earlier versions
		var sum string
		if sum, err = membersSum(&kept.Join); err == nil && sum != kept.SHA256 {
			err = errors.New("its checksum is another one")
		}
	}
	if err != nil {
		return &operator.Join{}, fmt.Errorf("%s is damaged, and is made anew when a server answers: %w", file, err)
	}
	return &kept.Join, nil
}

func writeMembers(file string, now *operator.Join) error {
	sum, err := membersSum(now)
	if err != nil {
		return err
	}
	b, err := json.Marshal(keptMembers{Join: *now, SHA256: sum})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(file, b, 0o600); err != nil {
		return fmt.Errorf("keeping where the servers are: %w", err)
	}
	return nil
}

func membersSum(m *operator.Join) (string, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

func askJoin(ctx context.Context, addr, dir string) (*operator.Join, error) {
	config, err := nodeConfig(addr, dir)
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+operator.PathJoin, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxJoinBytes))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s: %.300s", resp.Status, b)
	}
	out := &operator.Join{}
	return out, json.Unmarshal(b, out)
}
