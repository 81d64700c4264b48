package verb

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstrapsecrets "k8s.io/cluster-bootstrap/util/secrets"

	"github.com/berth-dev/berth/cmd/berth/internal/connect"
	"github.com/berth-dev/berth/pki"
)

// defaultTokenTTL is for how long a token lets machines join if nothing else is said.
const defaultTokenTTL = 24 * time.Hour

// token is how machines are let in: bootstrap tokens as Kubernetes has them.
func (e *Env) token() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make, see and delete the tokens by which machines join",
		Example: `  berth token create --ttl 2h --description "rack 7"
  berth token create --kubeconfig-file bootstrap.conf --server-address 10.0.0.1:7640
  berth token list
  berth token delete 07401b`,
		Args: cobra.NoArgs,
		RunE: needsSubcommand,
	}
	cmd.AddCommand(e.createToken(), e.listTokens(), e.deleteToken())
	return cmd
}

func (e *Env) createToken() *cobra.Command {
	var (
		ttl                 time.Duration
		description         string
		usages, extraGroups []string
		kubelet             kubeletFile
	)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token and print it; it is shown this once",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ttl < 0 {
				return usagef("--ttl %s is negative; 0 is for ever", ttl)
			}
			conn, err := e.Client.Connection()
			if err != nil {
				return err
			}
			server, err := kubelet.address(conn.Servers)
			if err != nil {
				return err
			}
			if kubelet.server != "" && kubelet.path == "" {
				return usagef("--server-address is what --kubeconfig-file names")
			}
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			root, err := api.Core.ConfigMaps(metav1.NamespaceSystem).Get(cmd.Context(), "kube-root-ca.crt", metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("reading the cluster's CA: %w", err)
			}
			t, err := pki.NewJoinToken([]byte(root.Data["ca.crt"]))
			if err != nil {
				return err
			}
			secret, err := tokenSecret(t, description, usages, extraGroups)
			if err != nil {
				return err
			}
			if ttl > 0 {
				secret.StringData[bootstrapapi.BootstrapTokenExpirationKey] = e.Now().Add(ttl).UTC().Format(time.RFC3339)
			}
			if _, err := api.Core.Secrets(metav1.NamespaceSystem).Create(cmd.Context(), secret, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("keeping the token: %w", err)
			}
			warnUnsigned(cmd.Context(), e.ErrOut, api)
			if kubelet.path != "" {
				return kubelet.write(e, server, []byte(root.Data["ca.crt"]), t)
			}
			_, err = fmt.Fprintln(e.Out, t)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&kubelet.path, "kubeconfig-file", "", "Write a kubeconfig by which kubelets join (--bootstrap-kubeconfig) to this file, - for here, and do not print the token.")
	f.StringVar(&kubelet.server, "server-address", "", "Where kubelets find the API: HOST:PORT, as a server's certificate names it; empty: the server that is asked now.")
	f.DurationVar(&ttl, "ttl", defaultTokenTTL, "For how long machines may join by it; 0 is for ever.")
	f.StringVar(&description, "description", "", "What it is for.")
	f.StringSliceVar(&usages, "usages", []string{"authentication"}, "What it may be used for; machines join by authentication.")
	f.StringSliceVar(&extraGroups, "groups", nil, "Further groups of whoever shows it, system:bootstrappers:….")
	return cmd
}

// warnUnsigned says that nobody can join by the token yet, where that is known: the leader has no key to sign with. Who may not ask is not told.
func warnUnsigned(ctx context.Context, out io.Writer, api *connect.API) {
	status, err := api.LeaderStatus(ctx)
	if err != nil || status.Signs == nil || *status.Signs {
		return
	}
	fmt.Fprintf(out, "Warning: %s, which leads, does not have the key of the cluster's CA (tls.ca_key_file): who joins by the token waits until a server leads that has it.\n", status.Name)
}

// tokenSecret is the secret that servers know a token by.
func tokenSecret(t pki.JoinToken, description string, usages, groups []string) (*corev1.Secret, error) {
	data := map[string]string{bootstrapapi.BootstrapTokenIDKey: t.ID, bootstrapapi.BootstrapTokenSecretKey: t.Secret}
	if description != "" {
		data[bootstrapapi.BootstrapTokenDescriptionKey] = description
	}
	for _, usage := range usages {
		if usage != "authentication" && usage != "signing" {
			return nil, usagef("--usages %q is none: authentication, signing", usage)
		}
		data[bootstrapapi.BootstrapTokenUsagePrefix+usage] = "true"
	}
	for _, group := range groups {
		if !strings.HasPrefix(group, bootstrapapi.BootstrapDefaultGroup+":") {
			return nil, usagef("--groups %q does not begin with %s:", group, bootstrapapi.BootstrapDefaultGroup)
		}
	}
	if len(groups) > 0 {
		data[bootstrapapi.BootstrapTokenExtraGroupsKey] = strings.Join(groups, ",")
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstrapapi.BootstrapTokenSecretPrefix + t.ID},
		Type:       bootstrapapi.SecretTypeBootstrapToken, StringData: data,
	}, nil
}

// shownToken is a token as it is listed: without its secret.
type shownToken struct {
	ID          string   `json:"id"`
	Expires     string   `json:"expires,omitempty"`
	Usages      []string `json:"usages"`
	Groups      []string `json:"groups,omitempty"`
	Description string   `json:"description,omitempty"`
}

func (e *Env) listTokens() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:   "list",
		Short: "Show the tokens by which machines may join",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			list, err := api.Core.Secrets(metav1.NamespaceSystem).List(cmd.Context(), metav1.ListOptions{
				FieldSelector: "type=" + string(bootstrapapi.SecretTypeBootstrapToken),
			})
			if err != nil {
				return fmt.Errorf("reading the tokens: %w", err)
			}
			tokens := make([]shownToken, len(list.Items))
			for i := range list.Items {
				tokens[i] = showToken(&list.Items[i])
			}
			slices.SortFunc(tokens, func(a, b shownToken) int { return strings.Compare(a.ID, b.ID) })
			return e.print(tokens, func(w io.Writer) {
				row(w, "ID", "EXPIRES", "USAGES", "DESCRIPTION")
				for _, t := range tokens {
					row(w, t.ID, cmp.Or(t.Expires, "never"), strings.Join(t.Usages, ","), t.Description)
				}
			})
		},
	})
}

func showToken(s *corev1.Secret) shownToken {
	t := shownToken{
		ID: bootstrapsecrets.GetData(s, bootstrapapi.BootstrapTokenIDKey), Expires: bootstrapsecrets.GetData(s, bootstrapapi.BootstrapTokenExpirationKey),
		Description: bootstrapsecrets.GetData(s, bootstrapapi.BootstrapTokenDescriptionKey), Usages: []string{},
	}
	if groups := bootstrapsecrets.GetData(s, bootstrapapi.BootstrapTokenExtraGroupsKey); groups != "" {
		t.Groups = strings.Split(groups, ",")
	}
	for key, value := range s.Data {
		if usage, ok := strings.CutPrefix(key, bootstrapapi.BootstrapTokenUsagePrefix); ok && string(value) == "true" {
			t.Usages = append(t.Usages, usage)
		}
	}
	slices.Sort(t.Usages)
	return t
}

func (e *Env) deleteToken() *cobra.Command {
	return &cobra.Command{
		Use:   "delete ID|TOKEN",
		Short: "Let nobody join by a token any more; who has joined stays",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, _, _ := strings.Cut(args[0], ".")
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			if err := api.Core.Secrets(metav1.NamespaceSystem).Delete(cmd.Context(), bootstrapapi.BootstrapTokenSecretPrefix+id, metav1.DeleteOptions{}); err != nil {
				return fmt.Errorf("deleting the token: %w", err)
			}
			_, err = fmt.Fprintf(e.Out, "token %s deleted\n", id)
			return err
		},
	}
}
