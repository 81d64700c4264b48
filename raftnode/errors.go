package raftnode

import (
	"errors"
	"fmt"
)

var (
	// ErrUnknownOutcome means that the proposals may or may not have been, or
	// may yet be, applied. Every other error of ProposeAsync and its Future means that nothing
	// was done and nothing will be.
	ErrUnknownOutcome = errors.New("the outcome is unknown: the commands may or may not have been applied")
	// ErrBusy means that too many proposals are waiting. Nothing was done.
	ErrBusy = errors.New("too many proposals are waiting; try again later")
	// ErrNoLeader means that no server leads now, as far as is known here.
	// Nothing was done.
	ErrNoLeader = errors.New("the cluster has no leader now")
	// ErrNotProposed means that the caller gave up before its proposals were
	// taken up. Nothing was done.
	ErrNotProposed = errors.New("the commands were not proposed")
	// ErrTooLarge means that a single command is larger than the log takes.
	// Nothing was done.
	ErrTooLarge = errors.New("the command is too large for the log")
	// ErrShutdown means that the node is stopped. Nothing was done.
	ErrShutdown = errors.New("the server is shutting down")
	// ErrAlreadyBootstrapped means that the data directory holds a log
	// already. It is safe to go on.
	ErrAlreadyBootstrapped = errors.New("this server belongs to a cluster already")
	// ErrLostData means that a server of the cluster is there without the
	// data that it had: the disk was replaced, or another server has its name.
	ErrLostData = errors.New("the server has no data, though the cluster knows it: its data directory was lost, or another server uses its name")
	// ErrUnknownServer means that a server is not one of the cluster's.
	ErrUnknownServer = errors.New("no such server in the cluster")
	// ErrLastVoter means that a change would leave the cluster without a vote.
	ErrLastVoter = errors.New("the last voting server can not be removed")
)

// NotLeaderError says that another server leads, and which. Nothing was done.
// Without a known leader it is ErrNoLeader to errors.Is.
type NotLeaderError struct {
	LeaderID, LeaderAddr string
}

func (e *NotLeaderError) Error() string {
	if e.LeaderID == "" {
		return "this server does not lead, and knows no leader"
	}
	return fmt.Sprintf("this server does not lead; %s at %s does", e.LeaderID, e.LeaderAddr)
}

// Is makes a NotLeaderError without a leader ErrNoLeader.
func (e *NotLeaderError) Is(target error) bool { return target == ErrNoLeader && e.LeaderID == "" }

// VersionError says that a command can not be proposed yet, because a server of
// the cluster does not know it. Nothing was done.
type VersionError struct {
	Command           string
	Needs, ClusterHas int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s needs every server at log version %d, and the cluster is at %d: upgrade all servers first", e.Command, e.Needs, e.ClusterHas)
}

// ForeignDataError says that a data directory belongs to another server or
// cluster than the one it was opened for.
type ForeignDataError struct {
	Dir string
	// What is "server" or "cluster"; Has is what the directory belongs to,
	// Want what it was opened for.
	What, Has, Want string
}

func (e *ForeignDataError) Error() string {
	return fmt.Sprintf("data directory %s belongs to %s %q, not to %q; give this server its own directory, or empty this one if its data may be lost", e.Dir, e.What, e.Has, e.Want)
}

// unknown makes an ErrUnknownOutcome with its cause.
func unknown(cause error) error { return fmt.Errorf("%w: %w", ErrUnknownOutcome, cause) }
