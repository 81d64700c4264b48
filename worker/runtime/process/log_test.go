package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-dev/berth/worker/runtime"
)

// stalled is a client that says when it is given something, and takes nothing until it is to.
type stalled struct {
	once  *sync.Once
	given chan struct{}
	until chan struct{}
}

func (s stalled) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.given) })
	<-s.until
	return len(p), nil
}
func (stalled) Close() error { return nil }

// What a container says at last is in its log, whoever is attached and takes nothing of it.
func TestLastLinesBesideStalledClient(t *testing.T) {
	h := open(t, Options{})
	dir := t.TempDir()
	const lines = 1300 // more than the client's pipe holds, and less than that and the container's
	id := h.start(pod("p", shell(fmt.Sprintf(`until test -e %s/go; do echo waits; sleep 0.01; done
		i=0; while [ $i -lt %d ]; do echo "%s $i"; i=$((i+1)); done; printf 'no end'`, dir, lines, strings.Repeat("x", 90)))), 0)
	client := stalled{new(sync.Once), make(chan struct{}), make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		ended <- attachment{h.rt.dir(id)}.AttachContainer(t.Context(), "", "", "", nil, client, nil, false, nil)
	}()
	<-client.given
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	got := strings.TrimLeft(h.logs(id, runtime.LogOptions{}), "waits\n")
	if n := strings.Count(got, "\n"); n != lines || !strings.HasSuffix(got, fmt.Sprintf(" %d\nno end", lines-1)) {
		t.Errorf("%d of %d lines are in the log, and at its end %q", n, lines, got[max(0, len(got)-200):])
	}
	close(client.until)
	<-ended // whatever came of it
}
