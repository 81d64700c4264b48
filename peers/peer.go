package peers

import "time"

// Server is one of Raft's configuration.
type Server struct {
	ID, RaftAddr string
	Voter        bool
	Leader       bool
}

// Answer is what a server says of itself over RPC.
type Answer struct {
	Server, Cluster, Version string
	// Behaviour is the newest version of the log's entries that it can carry out.
	Behaviour int
	// RPCAddr and HTTPAddr are host:port as others dial them.
	RPCAddr, HTTPAddr string
	// NonVoter: it wants no vote.
	NonVoter bool
	// Leader is who leads, as far as it knows.
	Leader string
	// LastTerm and LastIndex are those of its log's last entry; Applied is the
	// last entry that its state has.
	LastTerm, LastIndex, Applied uint64
	// LastContact is how long ago it heard from the leader: 0 on the leader,
	// negative if never.
	LastContact time.Duration
	// WallUnixNano is its wall clock.
	WallUnixNano int64
	// StateUnixNano is the state's time now, as it knows that has lived with it; 0: it
	// has not.
	StateUnixNano int64
	// MaxState is how many bytes it lets the state take; 0: it does not say.
	MaxState int64
	// ComparedIndex is the log entry after which it has last compared the servers'
	// states, as the leader; Unsettled says what it found that nobody but an
	// operator can settle.
	ComparedIndex uint64
	Unsettled     string
}

// Peer is a server of the cluster with what is known of it.
type Peer struct {
	Server
	Self bool
	// Answer is the last one; nil if it has never answered.
	Answer *Answer
	// Silent is how long ago that was; 0 of this server itself.
	Silent time.Duration
	// Failures are the questions since then that had no answer, and Error why the
	// last of them had none.
	Failures int
	Error    error
	// Offset is its wall clock less this server's, give or take Uncertainty.
	Offset, Uncertainty time.Duration
	// Compared: the offset is known. One that answers may not be compared yet, for a
	// question that took long tells nothing of a clock.
	Compared bool
	// State is the state's time as it tells it, less this server's Elapsed, in
	// nanoseconds since 1970, if it is StateTold.
	State     int64
	StateTold bool
}

// Answers: the last question had an answer.
func (p *Peer) Answers() bool { return p.Answer != nil && p.Failures == 0 }

// Version is the software's, "" if it is not known.
func (p *Peer) Version() string {
	if p.Answer == nil {
		return ""
	}
	return p.Answer.Version
}
