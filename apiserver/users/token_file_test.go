package users

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// TestTokensAreReadAgain: a token that is taken out of the file is worth nothing.
func TestTokensAreReadAgain(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	file := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		now = now.Add(recheck)
		if err := os.Chtimes(file, now, now); err != nil { // two writes of one tick and one length are one to a file system
			t.Fatal(err)
		}
	}
	write("old,ann,1,\"people\"\n")
	tokens, err := openTokens(file, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	tokens.now, tokens.checked = func() time.Time { return now }, now
	good := func(token string) bool {
		t.Helper()
		_, ok, err := tokens.AuthenticateToken(context.Background(), token)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !good("old") || good("new") {
		t.Fatal("the file is not what counts")
	}
	write("new,ann,1,\"people\"\n")
	if good("old") || !good("new") {
		t.Error("the file was not read again")
	}
	for _, wrong := range []string{"half,of\n", "x,eve,1,\"people,berth:workers\"\n", "x,eve,1,\"berth:servers\"\n", "x,berth:server:a,1\n", "\"\n"} {
		write(wrong)
		if !good("new") || good("x") || good("half") {
			t.Errorf("%q: it was taken", wrong)
		}
		if _, err := openTokens(file, hclog.NewNullLogger()); err == nil {
			t.Errorf("%q: a server starts with it", wrong)
		}
	}
}
