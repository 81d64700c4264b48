package verb

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/operator"
)

func (e *Env) operator() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Look after the servers: their log, snapshots, digests and leader",
		Args:  cobra.NoArgs,
		RunE:  needsSubcommand,
	}
	raft := &cobra.Command{Use: "raft", Short: "See and change which servers keep the log", Args: cobra.NoArgs, RunE: needsSubcommand}
	raft.AddCommand(e.listPeers(), e.removePeer())
	cmd.AddCommand(raft, e.snapshot(), e.status(), e.transferLeader(), e.verify(), e.signingKey(), e.encryption(), e.gossipKey())
	return cmd
}

func (e *Env) status() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:   "status",
		Short: "Show what the server that answers knows of itself",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			var s operator.Status
			if err := api.Operator(cmd.Context(), http.MethodGet, operator.PathStatus, nil, &s); err != nil {
				return fmt.Errorf("reading the status: %w", err)
			}
			return e.print(&s, func(w io.Writer) {
				row(w, "Name:", s.Name)
				row(w, "ID:", s.ID)
				row(w, "Version:", s.Version)
				row(w, "State:", s.State)
				row(w, "Leader:", orDash(s.Leader))
				row(w, "Term:", s.Term)
				row(w, "Committed:", fmt.Sprintf("index %d", s.CommitIndex))
				row(w, "Applied:", fmt.Sprintf("index %d, revision %d", s.AppliedIndex, s.Revision))
				if s.KnownVersion > 0 { // a server that tells it
					row(w, "Log:", fmt.Sprintf("version %d, of %d that this server knows", s.LogVersion, s.KnownVersion))
				}
				if s.MaxStateBytes > 0 {
					row(w, "Size:", sizeText(s.StateBytes, s.MaxStateBytes))
				}
				health := "yes"
				if !s.Healthy {
					health = "no: " + s.Message
				}
				row(w, "Healthy:", health)
				if s.Unsettled != "" {
					row(w, "DIFFERING:", s.Unsettled)
				}
				row(w, "Clock:", clockText(s.Clock))
				for _, f := range s.ApplyFailures {
					row(w, "Failed:", failureText(f))
				}
			})
		},
	})
}

// sizeText says how large the state is beside what it may be.
func sizeText(bytes, most int64) string {
	text := fmt.Sprintf("%.1f of %.1f MiB", float64(bytes)/(1<<20), float64(most)/(1<<20))
	switch {
	case bytes >= most:
		text += ": full, nothing that makes it larger is taken in (server.max_state)"
	case bytes >= most/10*8:
		text += ": nearly full (server.max_state)"
	}
	return text
}

// clockText says how a server's clock is beside the others'.
func clockText(c operator.Clock) string {
	if !c.Known {
		return "not compared: too few of the other servers answer"
	}
	text := offsetText(c.OffsetNano) + " beside the others'"
	if c.Astray {
		text += fmt.Sprintf(": set it right; this server does not lead (max_clock_offset is %s)", time.Duration(c.MaxOffsetNano))
	}
	if ahead := time.Duration(c.StateAheadNano); ahead.Abs() > time.Second {
		text += fmt.Sprintf("; the state's time is %s", offsetText(c.StateAheadNano))
	}
	return text
}

// offsetText is an offset to milliseconds, with its sign.
func offsetText(nano int64) string {
	return fmt.Sprintf("%+.3fs", time.Duration(nano).Seconds())
}

// failureText is one line about a command that panicked.
func failureText(f operator.ApplyFailure) string {
	text := fmt.Sprintf("%s at log entry %d, %s", f.Command, f.Index, time.Unix(0, f.TimeUnixNano).UTC().Format(time.RFC3339))
	if f.Part != "" {
		text += ", about " + f.Part
	}
	if f.User != "" {
		text += ", proposed by " + f.User
	}
	return text + ": undone and refused; the servers' logs say where it panicked"
}

func (e *Env) listPeers() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:   "list-peers",
		Short: "List the servers that keep the log",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			var c operator.RaftConfiguration
			if err := api.Operator(cmd.Context(), http.MethodGet, operator.PathRaftConfiguration, nil, &c); err != nil {
				return fmt.Errorf("reading the servers: %w", err)
			}
			return e.print(&c, func(w io.Writer) {
				if c.Message != "" {
					fmt.Fprintln(e.ErrOut, c.Message)
				}
				row(w, "ID", "ADDRESS", "SUFFRAGE", "LEADER", "LAST INDEX", "HEALTHY", "VERSION", "CLOCK")
				for _, s := range c.Servers {
					health, last, offset := "-", "-", "-"
					if s.ClockOffsetNano != nil {
						offset = offsetText(*s.ClockOffsetNano)
					}
					if s.Healthy != nil {
						health = map[bool]string{true: "yes", false: "no"}[*s.Healthy]
					}
					if s.LastIndex > 0 {
						last = fmt.Sprint(s.LastIndex)
					}
					row(w, s.ID, s.Address, s.Suffrage, yes(s.Leader), last, health, orDash(s.Version), offset)
				}
			})
		},
	})
}

func (e *Env) removePeer() *cobra.Command {
	return &cobra.Command{
		Use:   "remove-peer ID",
		Short: "Take a server out of those that keep the log",
		Long:  "Take a server that will not come back out of those that keep the log, so that it no longer counts for a majority.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			path := operator.PathRaftServers + "/" + url.PathEscape(args[0])
			if err := api.Operator(cmd.Context(), http.MethodDelete, path, nil, nil); err != nil {
				return err
			}
			fmt.Fprintf(e.Out, "server %s removed\n", args[0])
			return nil
		},
	}
}

func (e *Env) transferLeader() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:   "transfer-leader [ID]",
		Short: "Hand leadership to another server, or to the one named",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			var req operator.TransferLeaderRequest
			if len(args) == 1 {
				req.ID = args[0]
			}
			var res operator.TransferLeaderResult
			if err := api.Operator(cmd.Context(), http.MethodPost, operator.PathTransferLeader, req, &res); err != nil {
				return err
			}
			return e.print(&res, func(w io.Writer) {
				if res.To == "" {
					fmt.Fprintf(w, "%s gave up leadership; the others are electing a leader\n", res.From)
					return
				}
				fmt.Fprintf(w, "leadership went from %s to %s\n", res.From, res.To)
			})
		},
	})
}

func (e *Env) verify() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:   "verify",
		Short: "Compare the servers' states at one log index",
		Long:  "Ask every server for a digest of its whole state at one log index and compare them. The exit status is 0 only if all answered and all are equal.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			var v operator.VerifyResult
			if err := api.Operator(cmd.Context(), http.MethodPost, operator.PathVerify, nil, &v); err != nil {
				return err
			}
			err = e.print(&v, func(w io.Writer) {
				row(w, "SERVER", "DIGEST")
				silent, equal, first := 0, v.Message == "", ""
				for _, s := range v.Servers {
					digest := s.Digest
					switch {
					case s.Error != "":
						digest = "error: " + s.Error
						silent++
					case first == "":
						first = digest
					default:
						equal = equal && digest == first
					}
					row(w, s.Name, digest)
				}
				verdict := "the states are equal"
				switch {
				case v.Equal:
				case silent > 0 && equal && first != "":
					verdict = fmt.Sprintf("%d of %d servers did not answer; the states of the others are equal", silent, len(v.Servers))
				default:
					verdict = "THE STATES ARE NOT ALL EQUAL"
				}
				fmt.Fprintf(w, "\n%s at index %d, revision %d\n", verdict, v.Index, v.Revision)
				if v.Message != "" {
					fmt.Fprintln(w, v.Message)
				}
			})
			if err == nil && !v.Equal {
				return ErrFailed
			}
			return err
		},
	})
}

func (e *Env) signingKey() *cobra.Command {
	var req operator.SigningKeyRequest
	cmd := e.outputFlag(&cobra.Command{
		Use:   "rotate-signing-key",
		Short: "Sign service accounts' tokens with a new key",
		Long: "Make a new key sign the tokens of service accounts. Those that were signed before stay good until they end, " +
			"unless -revoke says that none does: pods then get nowhere with theirs until they are renewed or restarted.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			var done operator.SigningKeyResult
			if err := api.Operator(cmd.Context(), http.MethodPost, operator.PathSigningKey, &req, &done); err != nil {
				return fmt.Errorf("rotating the signing key: %w", err)
			}
			return e.print(&done, func(w io.Writer) { fmt.Fprintf(w, "service accounts' tokens are signed with the key %s\n", done.ID) })
		},
	})
	cmd.Flags().BoolVar(&req.Revoke, "revoke", false, "No token that was made before is good any more.")
	return cmd
}

func (e *Env) gossipKey() *cobra.Command {
	return &cobra.Command{
		Use:   "gossip-key",
		Short: "Make a key for gossip.encryption_key",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			key := make([]byte, 32)
			if _, err := io.ReadFull(rand.Reader, key); err != nil {
				return fmt.Errorf("making a key: %w", err)
			}
			_, err := fmt.Fprintln(e.Out, base64.StdEncoding.EncodeToString(key))
			return err
		},
	}
}
