package verb

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/operator"
)

func (e *Env) members() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:   "members",
		Short: "Show the servers and workers of the cluster, as gossip sees them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			var list operator.MemberList
			if err := api.Operator(cmd.Context(), http.MethodGet, operator.PathMembers, nil, &list); err != nil {
				return fmt.Errorf("reading the members: %w", err)
			}
			slices.SortStableFunc(list.Members, func(a, b operator.Member) int {
				return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Name, b.Name))
			})
			return e.print(&list, func(w io.Writer) {
				row(w, "NAME", "ROLE", "STATUS", "LEADER", "GOSSIP", "RPC", "HTTP", "VERSION")
				for _, m := range list.Members {
					row(w, m.Name, m.Role, m.Status, yes(m.Leader), m.GossipAddress, orDash(m.RPCAddress), orDash(m.HTTPAddress), orDash(m.Version))
				}
			})
		},
	})
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "-"
}
