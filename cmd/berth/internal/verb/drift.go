package verb

import (
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/operator"
)

func (e *Env) classDrift() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:   "drift",
		Short: "Show the pods whose priority is not that of their class any more",
		Long: `Show the pods whose priority is not that of the class they name: a pod keeps the priority that it was admitted with
when its class is deleted, or deleted and made again with another value.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			var drift operator.ClassDrift
			if err := api.Operator(cmd.Context(), http.MethodGet, operator.PathClassDrift, nil, &drift); err != nil {
				return fmt.Errorf("reading the pods apart from their class: %w", err)
			}
			return e.print(&drift, func(w io.Writer) { drawDrift(w, &drift) })
		},
	})
}

func drawDrift(w io.Writer, drift *operator.ClassDrift) {
	if len(drift.Pods) == 0 {
		fmt.Fprintln(w, "every pod has the priority of its class")
		return
	}
	row(w, "POD", "CLASS", "PRIORITY", "CLASS NOW")
	for _, p := range drift.Pods {
		now := "gone"
		if p.ClassValue != nil {
			now = fmt.Sprint(*p.ClassValue)
		}
		row(w, p.Namespace+"/"+p.Name, p.Class, p.Priority, now)
	}
	if drift.More {
		fmt.Fprintln(w, "...\tand more")
	}
}
