// Package verb has the commands that Berth adds to kubectl's: what is asked of
// the group berth.dev and of the operator endpoints, and how the answers are
// printed.
//
// It must never decide anything about the cluster: it asks a server and prints.
package verb

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/cmd/berth/internal/connect"
	"github.com/berth-dev/berth/config"
)

// Env is what a command works with.
type Env struct {
	In     io.Reader
	Out    io.Writer
	ErrOut io.Writer
	// Client is used when a command needs the cluster.
	Client *connect.Client
	// Flags are the connection's flags; the verbs add --output to them.
	Flags *config.Flags
	// Now is the time that ages are counted to.
	Now func() time.Time
	// InspectSnapshot reads a snapshot and sums it up.
	InspectSnapshot func(io.Reader) (SnapshotSummary, error)
}

// UsageError says that a command was called wrongly.
type UsageError struct{ Message string }

func (e *UsageError) Error() string { return e.Message }

func usagef(format string, args ...any) error {
	return &UsageError{Message: fmt.Sprintf(format, args...)}
}

// ErrFailed ends a command with exit status 1 after it has printed why.
var ErrFailed = errors.New("failed")

// Commands are all of Berth's own verbs that ask a cluster, in the order in
// which help shows them.
func Commands(e *Env) []*cobra.Command {
	return []*cobra.Command{
		e.queue(), e.why(), e.preemptions(), e.evict(), e.plan(), e.class(), e.members(), e.token(), e.node(), e.operator(),
	}
}

// outputFlag gives a command -o.
func (e *Env) outputFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVarP(&e.Flags.Output, "output", "o", "", "Output format: table, json or yaml.")
	return cmd
}

// print writes obj as JSON or YAML, or calls table.
func (e *Env) print(obj any, table func(w io.Writer)) error {
	conn, err := e.Client.Connection()
	if err != nil {
		return err
	}
	return e.printAs(conn.Output, obj, table)
}

func (e *Env) printAs(format string, obj any, table func(w io.Writer)) error {
	switch format {
	case "json":
		data, err := json.MarshalIndent(obj, "", "  ")
		if err != nil {
			return fmt.Errorf("writing JSON: %w", err)
		}
		_, err = fmt.Fprintf(e.Out, "%s\n", data)
		return err
	case "yaml":
		data, err := yaml.Marshal(obj)
		if err != nil {
			return fmt.Errorf("writing YAML: %w", err)
		}
		_, err = e.Out.Write(data)
		return err
	}
	// Several tables may follow each other, and each has its own widths.
	w := tabwriter.NewWriter(e.Out, 6, 4, 3, ' ', 0)
	table(w)
	return w.Flush()
}

// row writes one line of a table.
func row(w io.Writer, cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = fmt.Sprint(c)
	}
	fmt.Fprintln(w, strings.TrimRight(strings.Join(texts, "\t"), "\t"))
}

// scope is the namespace to look in: "" is all of them.
func (e *Env) scope(all bool) (string, error) {
	if all {
		return "", nil
	}
	conn, err := e.Client.Connection()
	if err != nil {
		return "", err
	}
	return conn.Namespace, nil
}

// age is how long ago t was, as kubectl writes it.
func (e *Env) age(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(e.Now().Sub(t))
}

func (e *Env) ageOf(t *metav1.MicroTime) string {
	if t == nil {
		return ""
	}
	return e.age(t.Time)
}

// clock is a time in a sentence.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }

// qualified is namespace/name.
func qualified(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// plural is "1 pod", "2 pods".
func plural[N int | int32 | int64](n N, noun string) string {
	if n == 1 {
		return fmt.Sprintf("1 %s", noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// podName takes the argument POD, which may be written as kubectl prints it.
func podName(arg string) string {
	for _, prefix := range []string{"pod/", "pods/", "po/"} {
		if name, ok := strings.CutPrefix(arg, prefix); ok {
			return name
		}
	}
	return arg
}
