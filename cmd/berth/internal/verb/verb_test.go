package verb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/cmd/berth/internal/connect"
	"github.com/berth-dev/berth/config"
)

// now is when all transcripts happen.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// stage is a server that answers with what a transcript puts into it, and notes
// what it was asked.
type stage struct {
	server *httptest.Server

	mu      sync.Mutex
	answers map[string]answer
	asked   []string
}

type answer struct {
	status int
	body   []byte
}

func newStage(t *testing.T) *stage {
	s := &stage{answers: map[string]answer{}}
	s.server = httptest.NewServer(s)
	t.Cleanup(s.server.Close)
	return s
}

func (s *stage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	line := r.Method + " " + r.URL.Path
	if r.URL.RawQuery != "" {
		line += "?" + r.URL.RawQuery
	}
	if len(body) > 0 {
		line += " " + strings.TrimSpace(string(body))
	}
	s.asked = append(s.asked, line)
	w.Header().Set("Content-Type", "application/json")
	a, ok := s.answers[r.Method+" "+r.URL.Path]
	if !ok {
		a = answer{http.StatusNotFound, []byte(fmt.Sprintf(
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"%s not found"}`, filepath.Base(r.URL.Path)))}
	}
	w.WriteHeader(a.status)
	w.Write(a.body)
}

// play runs one directive of a transcript.
func (s *stage) play(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "answer": // answer GET /path [status=N], with the body as YAML
		var status int = http.StatusOK
		d.MaybeScanArgs(t, "status", &status)
		body, err := yaml.YAMLToJSON([]byte(d.Input))
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		s.answers[d.CmdArgs[0].Key+" "+d.CmdArgs[1].Key] = answer{status, body}
		return ""
	case "forget":
		s.answers = map[string]answer{}
		return ""
	case "berth": // berth VERB..., with the standard input below
		var args []string
		for _, a := range d.CmdArgs {
			arg := a.Key
			if len(a.Vals) > 0 {
				arg += "=" + strings.Join(a.Vals, ",")
			}
			args = append(args, arg)
		}
		return s.run(d.Input, args...)
	case "asked": // what the server was asked since the last time
		s.mu.Lock()
		defer s.mu.Unlock()
		out := strings.Join(s.asked, "\n")
		s.asked = nil
		return out + "\n"
	}
	d.Fatalf(t, "unknown directive %s", d.Cmd)
	return ""
}

// run runs a command and returns what it printed and how it ended.
func (s *stage) run(stdin string, args ...string) string {
	var out, errOut bytes.Buffer
	e := env(s.server.URL, strings.NewReader(stdin), &out, &errOut)
	err := execute(context.Background(), e, args)
	text := out.String()
	if errOut.Len() > 0 {
		text += "stderr: " + errOut.String()
	}
	var usage *UsageError
	switch {
	case errors.As(err, &usage):
		text += "usage: " + err.Error() + "\n"
	case err != nil:
		text += "error: " + err.Error() + "\n"
	}
	return text
}

func env(url string, in io.Reader, out, errOut io.Writer) *Env {
	flags := &config.Flags{Addresses: []string{url}}
	return &Env{
		In: in, Out: out, ErrOut: errOut, Flags: flags,
		Client: connect.New(flags, func(string) string { return "" }),
		Now:    func() time.Time { return now },
		InspectSnapshot: func(r io.Reader) (SnapshotSummary, error) {
			data, err := io.ReadAll(r)
			if err != nil || string(data) == "damaged" {
				return SnapshotSummary{}, errors.Join(err, errors.New("the checksum is wrong"))
			}
			return SnapshotSummary{Index: 12, Revision: 34, Digest: "d1", Tables: []TableCount{{"pods", 2}, {"nodes", 1}}}, nil
		},
	}
}

func execute(ctx context.Context, e *Env, args []string) error {
	root := &cobra.Command{Use: "berth", SilenceErrors: true, SilenceUsage: true}
	root.PersistentFlags().StringVarP(&e.Flags.Namespace, "namespace", "n", "", "")
	root.AddCommand(Commands(e)...)
	root.SetArgs(args)
	root.SetOut(e.Out)
	root.SetErr(e.ErrOut)
	return root.ExecuteContext(ctx)
}

func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := newStage(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.play(t, d) })
	})
}

func TestSnapshotFiles(t *testing.T) {
	s := newStage(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "berth.snap")

	s.answers["GET /berth/v1/snapshot"] = answer{http.StatusOK, []byte("whole")}
	if got, want := s.run("", "operator", "snapshot", "save", file), "snapshot of 5 bytes written to "+file+"\n"; got != want {
		t.Errorf("save: want %q, got %q", want, got)
	}
	s.answers["PUT /berth/v1/snapshot"] = answer{http.StatusOK, []byte(`{"index":99,"revision":34}`)}
	s.asked = nil
	if got, want := s.run("", "operator", "snapshot", "restore", file), "state of revision 34 restored at index 99\n"; got != want {
		t.Errorf("restore: want %q, got %q", want, got)
	}
	if want := []string{"PUT /berth/v1/snapshot whole"}; !slices.Equal(s.asked, want) {
		t.Errorf("restore asked %q, want %q", s.asked, want)
	}
	if got, want := s.run("", "operator", "snapshot", "inspect", file), "Index:     12\nRevision:  34\nDigest:    d1\npods:      2\nnodes:     1\n"; spaced(got) != spaced(want) {
		t.Errorf("inspect: want %q, got %q", want, got)
	}

	// A download that is damaged leaves the good file and nothing else.
	s.answers["GET /berth/v1/snapshot"] = answer{http.StatusOK, []byte("damaged")}
	if got := s.run("", "operator", "snapshot", "save", file); !strings.Contains(got, "the checksum is wrong") {
		t.Errorf("save of a damaged snapshot: %q", got)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "whole" {
		t.Errorf("the good snapshot became %q, %v", data, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}

	// A damaged file never reaches a server.
	if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.asked = nil
	if got := s.run("", "operator", "snapshot", "restore", file); !strings.Contains(got, "the checksum is wrong") || len(s.asked) != 0 {
		t.Errorf("restore of a damaged file: %q, asked %q", got, s.asked)
	}
}

func spaced(s string) string { return strings.Join(strings.Fields(s), " ") }

// watching serves a list, then watches that end, one after the other.
type watching struct {
	mu      sync.Mutex
	watches []string
	asked   []string
	done    context.CancelFunc
}

func (s *watching) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") == "" {
		io.WriteString(w, `{"kind":"PreemptionList","apiVersion":"berth.dev/v1","metadata":{"resourceVersion":"10"},"items":[]}`)
		return
	}
	s.asked = append(s.asked, r.URL.Query().Get("resourceVersion"))
	if len(s.watches) == 0 {
		s.done()
		return
	}
	io.WriteString(w, s.watches[0])
	s.watches = s.watches[1:]
}

func event(kind, name, revision string) string {
	return fmt.Sprintf(`{"type":%q,"object":{"kind":"Preemption","apiVersion":"berth.dev/v1","metadata":{"namespace":"default","name":%q,"resourceVersion":%q},`+
		`"status":{"preemptor":{"namespace":"default","name":"web","priority":1000},"node":"n1","state":"Terminating","revision":%s,"time":"2026-03-01T11:59:00.000000Z"}}}`+"\n",
		kind, name, revision, revision)
}

func TestPreemptionsAreFollowedAcrossWatches(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s := &watching{done: cancel, watches: []string{
		event("ADDED", "a", "11") + event("MODIFIED", "a", "12"),
		event("DELETED", "a", "13"),
		`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}}` + "\n",
		event("ADDED", "b", "14") + "no event",
	}}
	server := httptest.NewServer(s)
	defer server.Close()
	var out, errOut bytes.Buffer
	if err := execute(ctx, env(server.URL, nil, &out, &errOut), []string{"preemptions", "-w"}); err != nil {
		t.Fatal(err)
	}
	const want = `
REVISION   AGE    PREEMPTOR                  PRIORITY   NODE           STATE         MINIMAL    VICTIMS
11         60s    default/web                1000       n1             Terminating   -          -
12         60s    default/web                1000       n1             Terminating   -          -
14         60s    default/web                1000       n1             Terminating   -          -
`
	if "\n"+out.String() != want {
		t.Errorf("want %s\n got \n%s", want, out.String())
	}
	if want := []string{"10", "12", "13", "10", "14"}; !slices.Equal(s.asked, want) {
		t.Errorf("the watches began at %v, want %v", s.asked, want)
	}
	if told := errOut.String(); !strings.HasPrefix(told, "some changes were missed\n") || !strings.Contains(told, "unable to decode an event from the watch stream") {
		t.Errorf("stderr: %q", errOut.String())
	}
}
