package users

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/apiserver/yamlfile"
)

// recheck bounds how often it is looked whether a file has changed: who is taken out of it is
// nobody so much later.
const recheck = yamlfile.Recheck

// tokenFile holds the bearer tokens of a file, which is read again when it changes.
// While it cannot be read or is wrong, the tokens of before are good.
type tokenFile struct {
	file   string
	logger hclog.Logger
	now    func() time.Time

	mu      sync.Mutex
	current *tokenfile.TokenAuthenticator
	watch   yamlfile.Watch
	checked time.Time
}

// openTokens reads the file; "" gives nil.
func openTokens(file string, logger hclog.Logger) (*tokenFile, error) {
	if file == "" {
		return nil, nil
	}
	t := &tokenFile{file: file, logger: logger, now: time.Now}
	t.checked = t.now()
	t.watch = yamlfile.NewWatch(t.file)
	var err error
	if t.current, err = readTokens(file); err != nil {
		return nil, fmt.Errorf("reading the token file: %w", err)
	}
	return t, nil
}

// CheckTokens finds what is wrong with a file of tokens.
func CheckTokens(file string) error {
	_, err := readTokens(file)
	return err
}

// readTokens refuses a file that makes somebody a server or a worker: that is
// what certificates are for.
func readTokens(file string) (*tokenfile.TokenAuthenticator, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	r := csv.NewReader(f)
	r.FieldsPerRecord = -1
	for {
		fields, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		line, _ := r.FieldPos(0)
		if len(fields) < 3 {
			return nil, fmt.Errorf("%s:%d: a token has at least three fields: token, user, uid", file, line)
		}
		if access.IsReserved(strings.TrimSpace(fields[1])) {
			return nil, fmt.Errorf("%s:%d: the user %q is for Berth's own parts, such as servers and workers", file, line, fields[1])
		}
		if len(fields) > 3 {
			for g := range strings.SplitSeq(fields[3], ",") {
				if access.IsReserved(strings.TrimSpace(g)) {
					return nil, fmt.Errorf("%s:%d: the group %q is for Berth's own parts, such as servers and workers", file, line, g)
				}
			}
		}
	}
	return tokenfile.NewCSV(file)
}

// AuthenticateToken implements authenticator.Token.
func (t *tokenFile) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return t.newest().AuthenticateToken(ctx, token)
}

func (t *tokenFile) newest() *tokenfile.TokenAuthenticator {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); now.Sub(t.checked) >= recheck {
		t.checked = now
		if t.watch.Changed() {
			t.reload()
		}
	}
	return t.current
}

func (t *tokenFile) reload() {
	read, err := readTokens(t.file)
	if err != nil {
		t.logger.Error("the token file has changed and cannot be read; the tokens of before stay good", "error", err)
		return
	}
	t.current = read
	t.logger.Info("the token file has changed, and was read again", "file", t.file)
}
