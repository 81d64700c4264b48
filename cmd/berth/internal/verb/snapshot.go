package verb

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/atomicfile"
)

// SnapshotSummary is what a snapshot holds.
type SnapshotSummary struct {
	Index    uint64       `json:"index"`
	Revision int64        `json:"revision"`
	Digest   string       `json:"digest"`
	Tables   []TableCount `json:"tables"`
}

// TableCount is the number of objects in one table of the state.
type TableCount struct {
	Table string `json:"table"`
	Count int    `json:"count"`
}

func (e *Env) snapshot() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Save, restore and look at the cluster's whole state",
		Args:  cobra.NoArgs,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(e.snapshotSave(), e.snapshotRestore(), e.snapshotInspect())
	return cmd
}

func (e *Env) snapshotSave() *cobra.Command {
	return &cobra.Command{
		Use:   "save FILE",
		Short: "Write the cluster's state to a file",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := e.saveSnapshot(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(e.Out, "snapshot of %d bytes written to %s\n", size, args[0])
			return nil
		},
	}
}

// saveSnapshot downloads beside the file and renames, so that a download that
// breaks off never stands where a snapshot should be.
func (e *Env) saveSnapshot(ctx context.Context, file string) (size int64, err error) {
	api, err := e.Client.API()
	if err != nil {
		return 0, err
	}
	stream, err := api.Download(ctx, operator.PathSnapshot)
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	err = atomicfile.WriteFrom(file, 0o600, func(w io.Writer, path string) error {
		if size, err = io.Copy(w, stream); err != nil {
			return err
		}
		// The summary reads the whole file, checksum included.
		_, err := e.inspect(path)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("saving the snapshot: %w", err)
	}
	return size, nil
}

func (e *Env) snapshotRestore() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the cluster's whole state by that of a file",
		Long:  "Replace the cluster's whole state by that of a file. What happened since the snapshot was saved is lost; watches begin anew.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// A file that is damaged must not reach a server.
			if _, err := e.inspect(args[0]); err != nil {
				return err
			}
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			api, err := e.Client.API()
			if err != nil {
				return err
			}
			var res operator.RestoreResult
			if err := api.Upload(cmd.Context(), operator.PathSnapshot, operator.SnapshotContentType, f, &res); err != nil {
				return fmt.Errorf("snapshot %s: %w", args[0], err)
			}
			return e.print(&res, func(w io.Writer) {
				fmt.Fprintf(w, "state of revision %d restored at index %d\n", res.Revision, res.Index)
			})
		},
	})
}

func (e *Env) snapshotInspect() *cobra.Command {
	return e.outputFlag(&cobra.Command{
		Use:   "inspect FILE",
		Short: "Check a snapshot file and count what is in it",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := e.inspect(args[0])
			if err != nil {
				return err
			}
			return e.print(&s, func(w io.Writer) {
				row(w, "Index:", s.Index)
				row(w, "Revision:", s.Revision)
				row(w, "Digest:", s.Digest)
				for _, t := range s.Tables {
					row(w, t.Table+":", t.Count)
				}
			})
		},
	})
}

func (e *Env) inspect(file string) (SnapshotSummary, error) {
	f, err := os.Open(file)
	if err != nil {
		return SnapshotSummary{}, err
	}
	defer f.Close()
	s, err := e.InspectSnapshot(f)
	if err != nil {
		return SnapshotSummary{}, fmt.Errorf("snapshot %s: %w", file, err)
	}
	return s, nil
}
