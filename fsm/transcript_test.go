package fsm

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-dev/berth/store"
)

// TestTranscripts replays testdata/*.txt, one for each command, and
// testdata/rules/*.txt, one for each rule. -rewrite regenerates what the state
// machine answers.
//
// Directives that change something answer "ok", or the refusal, and what was
// changed. `cluster` runs one directive a line and shows refusals only.
// transcript_commands_test.go has the directives that propose commands,
// transcript_show_test.go those that only look.
func TestTranscripts(t *testing.T) {
	err := filepath.WalkDir("testdata", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".txt" {
			return err
		}
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			s := newTranscript(t)
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				s.t = t
				return s.directive(d)
			})
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestEveryCommandHasATranscript: testdata/<its_name>.txt.
func TestEveryCommandHasATranscript(t *testing.T) {
	for _, r := range commands {
		name := snake(reflect.TypeOf(r.New()).Elem().Name())
		if m, _ := filepath.Glob(filepath.Join("testdata", name+".txt")); len(m) == 0 {
			t.Errorf("command %T (%d) has no transcript testdata/%s.txt", r.New(), r.Number, name)
		}
	}
}

func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if 'A' <= r && r <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// rules are those that the state machine keeps and a transcript shows.
var rules = strings.Fields(`
	PC1 PC2 PC3 PC4 PC5 PC6 PC7 PC8 PC9 PC10 PC11 PC12 PC15 PC16
	AD1 AD2 AD3 AD4 AD5 AD6
	QU1 QU2 QU3 QU4 QU5 QU6 QU7 QU8 QU10
	NM1 NM2 NM3 NM4 NM5 NM6 NM7
	TS2 TS3 TS4 TS5 TS6 TS7 TS8 TS9 TS11 TS12 TS13 TS14 TS16 TS17 AF2 AF3
	PR12 PR13 PR16 PR17 PR20 T2 T5
	TM1 TM4 TM6 PO2 T14 PD1 PD2 PD3 PD4 PD5 PD6 PD7 PD8 PD9 PD10 PD12 PD13`)

func TestEveryRuleHasATranscript(t *testing.T) {
	for _, r := range rules {
		if m, _ := filepath.Glob(filepath.Join("testdata", "rules", r+".txt")); len(m) == 0 {
			t.Errorf("rule %s has no transcript testdata/rules/%s.txt", r, r)
		}
	}
}

// transcript is a world that is driven by text.
type transcript struct {
	*world
	quiet bool // inside cluster: refusals only
	shown int64
	views map[string]int64 // remembered revisions by name
}

func newTranscript(t failer) *transcript { return newTranscriptBy(t, LogVersion) }

// newTranscriptBy is a transcript of a world that goes by a version of the rules.
func newTranscriptBy(t failer, version int) *transcript {
	s := &transcript{world: newWorld(t), views: map[string]int64{}}
	s.version = version
	s.quiet = true
	s.run("namespace", words{"default"}, "")
	for _, c := range []string{"system-cluster-critical value=2000000000", "system-node-critical value=2000001000"} {
		s.line("class " + c)
	}
	s.quiet, s.shown = false, s.view().Revision()
	return s
}

func (s *transcript) directive(d *datadriven.TestData) string {
	var ws words
	for _, a := range d.CmdArgs {
		ws = append(ws, argText(a))
	}
	return s.run(d.Cmd, ws, d.Input)
}

func argText(a datadriven.CmdArg) string {
	if len(a.Vals) == 0 {
		return a.Key
	}
	return a.Key + "=" + strings.Join(a.Vals, ",")
}

// line runs one directive that is written on a line.
func (s *transcript) line(text string) string {
	cmd, args, err := datadriven.ParseLine(text)
	if err != nil {
		s.t.Fatalf("%q: %v", text, err)
	}
	var ws words
	for _, a := range args {
		ws = append(ws, argText(a))
	}
	return s.run(cmd, ws, "")
}

func (s *transcript) run(cmd string, args words, input string) string {
	s.t.Helper()
	switch cmd {
	case "cluster":
		return s.cluster(input)
	case "advance": // advance 5s: the leader's clock, seen with the next entry
		d, err := time.ParseDuration(args.name())
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = s.now.Add(d)
		return "ok"
	case "as": // as bob groups=a,b: who proposes from here on
		s.user, s.groups = args.name(), args.list("groups")
		return "ok"
	case "remember": // remember NAME: this revision, for at=NAME
		s.views[args.name()] = s.view().Revision()
		return "ok"
	case "decided": // decided NAME: what is proposed from here on is decided by the revision remembered so; without a name, by whichever
		s.decided = 0
		if len(args) > 0 {
			s.decided = s.views[args.name()]
		}
		return "ok"
	case "save": // save NAME: a snapshot of the state as it is, for stage and restore
		s.save(args.name())
		return "ok"
	case "snapshot": // go on with what the snapshot of the state gives
		s.restore()
		return "restored: same digest, same indexes"
	case "fork": // run the lines on a copy; the original must not notice
		return s.fork(input)
	}
	if build, ok := proposals[cmd]; ok {
		answer := s.propose(build(s, args, input))
		if cmd == "stage" || cmd == "restore" {
			answer = withoutOffsets(answer)
		}
		return answer
	}
	if show, ok := shows[cmd]; ok {
		return orNone(show(s, args))
	}
	s.t.Fatalf("unknown directive %s", cmd)
	return ""
}

func (s *transcript) cluster(input string) string {
	s.quiet = true
	defer func() { s.quiet, s.shown = false, s.view().Revision() }()
	out := ""
	for _, l := range strings.Split(strings.TrimSpace(input), "\n") {
		if answer := s.line(l); answer != "ok" {
			out += l + ": " + answer + "\n"
		}
	}
	if out == "" {
		return "ok"
	}
	return out
}

func (s *transcript) fork(input string) string {
	digest := s.view().Digest()
	// The same entry cannot go to two states: each decodes it for itself.
	copied := &transcript{world: newWorld(s.t), views: s.views, shown: s.shown}
	copied.state, copied.replica = s.view().Fork(), s.view().Fork()
	copied.now, copied.index, copied.user, copied.groups = s.now, s.index, s.user, s.groups
	copied.seen, copied.shadow = s.seen, map[string]map[string]any{}
	for table, rows := range s.shadow {
		copied.shadow[table] = map[string]any{}
		for k, r := range rows {
			copied.shadow[table][k] = r
		}
	}
	out := ""
	for _, l := range strings.Split(strings.TrimSpace(input), "\n") {
		out += "> " + l + "\n" + strings.TrimSuffix(copied.line(l), "\n") + "\n"
	}
	if s.view().Digest() != digest {
		s.t.Fatal("the original changed with its copy")
	}
	return out
}

// propose puts the commands into one entry, and says what became of them.
func (s *transcript) propose(cs []Command) string {
	s.t.Helper()
	var out []string
	for _, r := range s.apply(cs...) {
		if r.Refused() {
			out = append(out, fmt.Sprintf("%d %s: %s%s", r.Code, r.Reason, r.Message, causes(r)))
		}
		if r.Plan != nil {
			for _, p := range r.Plan.Refused {
				out = append(out, fmt.Sprintf("refused %s: %s", p.Key, p.Reason))
			}
		}
	}
	if len(out) == 0 {
		out = append(out, "ok")
	}
	if !s.quiet {
		out = append(out, s.changes()...)
	}
	return strings.Join(out, "\n")
}

func causes(r Result) string {
	if r.Details == nil || len(r.Details.Causes) == 0 || r.Code == 422 {
		return ""
	}
	if r.Code == 429 {
		out := ""
		for _, c := range r.Details.Causes {
			out += fmt.Sprintf("\n  cause %s: %s", c.Type, c.Message)
		}
		return out
	}
	return fmt.Sprintf(" (cause %s)", r.Details.Causes[0].Type)
}

// changes is what happened since it was last shown, from the feed.
func (s *transcript) changes() []string {
	var out []string
	changes, err := allAfter(s.state.Feed(), s.shown)
	if errors.Is(err, store.ErrCompacted) {
		s.shown = s.view().Revision()
		return []string{"  everything anew"}
	}
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range changes {
		sign, row := "~", c.New
		switch {
		case c.Old == nil:
			sign = "+"
		case c.New == nil:
			sign, row = "-", nil
		}
		out = append(out, strings.TrimRight(fmt.Sprintf("  %s %s %s %s", sign, singular(c.Table), c.Key, describe(row)), " "))
	}
	s.shown = s.view().Revision()
	return out
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// words are the arguments of a directive: a name first, then key=value or
// flags.
type words []string

func (w words) name() string {
	if len(w) == 0 {
		return ""
	}
	return w[0]
}

func (w words) has(flag string) bool {
	for _, x := range w {
		if x == flag {
			return true
		}
	}
	return false
}

func (w words) get(key string) (string, bool) {
	for _, x := range w {
		if v, ok := strings.CutPrefix(x, key+"="); ok {
			return v, true
		}
	}
	return "", false
}

func (w words) or(key, otherwise string) string {
	if v, ok := w.get(key); ok {
		return v
	}
	return otherwise
}

func (w words) list(key string) []string {
	v, ok := w.get(key)
	if !ok || v == "" {
		return nil
	}
	return strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
}
