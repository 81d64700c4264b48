package verb

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/operator"
)

func (e *Env) node() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Throw a machine out whose key others may have",
		Args:  cobra.NoArgs,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(e.revokeNode())
	return cmd
}

func (e *Env) revokeNode() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke NAME",
		Short: "Make every certificate of a node worthless that was issued until now",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			var out operator.RevokedNode
			if err := api.Operator(cmd.Context(), http.MethodPost, operator.PathRevokedNodes+"/"+url.PathEscape(args[0]), nil, &out); err != nil {
				return fmt.Errorf("revoking: %w", err)
			}
			if out.Unknown {
				fmt.Fprintf(e.ErrOut, "no node is called %s now: is that its name?\n", out.Node)
			}
			_, err = fmt.Fprintf(e.Out, "node %s revoked: certificates that were issued until %s count no more\n", out.Node, clock(out.Until))
			return err
		},
	}
}
