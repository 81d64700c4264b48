package verb

import (
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/operator"
)

func (e *Env) encryption() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "encryption",
		Short: "See what is encrypted with which key, and encrypt it with the newest",
		Args:  cobra.NoArgs,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(e.encryptionStatus(), e.encryptionRewrite())
	return cmd
}

func (e *Env) encryptionStatus() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:   "status",
		Short: "Show what is encrypted with which key, as the server that answers can open it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			var s operator.EncryptionStatus
			if err := api.Operator(cmd.Context(), http.MethodGet, operator.PathEncryption, nil, &s); err != nil {
				return fmt.Errorf("reading what is encrypted: %w", err)
			}
			locked := false
			err = e.print(&s, func(w io.Writer) { locked = tellEncryption(w, &s) })
			if err == nil && locked {
				return ErrFailed
			}
			return err
		},
	})
}

// tellEncryption also says whether there is something that the server cannot open.
func tellEncryption(w io.Writer, s *operator.EncryptionStatus) (locked bool) {
	if s.File == "" {
		fmt.Fprintf(w, "Server %s has no encryption configuration (server.encryption_config).\n", s.Server)
	} else {
		fmt.Fprintf(w, "Server %s encrypts by %s (configuration %s).\n", s.Server, s.File, s.Fingerprint)
	}
	if len(s.Holdings) == 0 {
		return false
	}
	stale := 0
	fmt.Fprintln(w)
	row(w, "RESOURCE", "KEY", "OBJECTS", "STALE", "PROBLEM")
	for _, h := range s.Holdings {
		row(w, h.Resource, h.Key, h.Objects, h.Stale, orDash(h.Problem))
		stale += h.Stale
		locked = locked || h.Problem != ""
	}
	switch {
	case locked:
		fmt.Fprintf(w, "\nSERVER %s CANNOT OPEN ALL OF IT: give it the keys that are missing\n", s.Server)
	case stale > 0:
		fmt.Fprintf(w, "\n%d are stale: `berth operator encryption rewrite` writes them with the first key, and until then the others are needed\n", stale)
	default:
		fmt.Fprintln(w, "\nall are of the first key: a key that is not shown may go from the configurations, once every server answers so; backups of before still need it")
	}
	return locked
}

func (e *Env) encryptionRewrite() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:   "rewrite",
		Short: "Encrypt everything with the key that the server that answers encrypts with",
		Long: "Write every object anew that is in clear or encrypted with an older key, and make a new key for service accounts' tokens if " +
			"that one is. Every server should have the new key before: those without it could not show the objects.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			var all operator.EncryptionRewrite
			for more := true; more; {
				var part operator.EncryptionRewrite
				if err := api.Operator(cmd.Context(), http.MethodPost, operator.PathEncryptionRewrite, nil, &part); err != nil {
					return fmt.Errorf("encrypting anew, after %d objects: %w", all.Rewritten, err)
				}
				all.Rewritten += part.Rewritten
				all.Overtaken += part.Overtaken
				all.SigningKey = all.SigningKey || part.SigningKey
				// Where all were overtaken, those who did it have written with the newest key.
				more = part.More && part.Rewritten > 0
			}
			return e.print(&all, func(w io.Writer) {
				fmt.Fprintf(w, "%d objects were encrypted anew\n", all.Rewritten)
				if all.SigningKey {
					fmt.Fprintln(w, "service accounts' tokens are signed with a new key")
				}
			})
		},
	})
}
