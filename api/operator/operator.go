// Package operator holds the JSON messages of the operator endpoints: the HTTP
// paths under /berth/v1/ that are about the servers themselves and not about
// objects. Server and command line share it. An answer with an HTTP status of
// 400 or more has a metav1.Status as its body, as the Kubernetes API has. A server
// answers 503 if it cannot do it (because it does not lead, or nobody does) and
// has done nothing; the caller may then ask the leader.
//
// It must never hold behaviour, and must never import anything of Berth.
package operator

import "time"

// The paths. A server ID is appended to PathRaftServers with a slash.
const (
	PathMembers           = "/berth/v1/members"
	PathStatus            = "/berth/v1/status"
	PathRaftConfiguration = "/berth/v1/raft/configuration"
	PathRaftServers       = "/berth/v1/raft/servers"
	PathTransferLeader    = "/berth/v1/raft/transfer-leader"
	PathSnapshot          = "/berth/v1/snapshot"
	PathVerify            = "/berth/v1/verify"
	PathSigningKey        = "/berth/v1/signing-key"
	PathClassDrift        = "/berth/v1/class-drift"
	PathEncryption        = "/berth/v1/encryption"
	PathEncryptionRewrite = "/berth/v1/encryption/rewrite"
	PathJoin              = "/berth/v1/join"
	PathRevokedNodes      = "/berth/v1/revoked-nodes"
)

// Endpoints are the methods and paths that a server answers at, as net/http's patterns: it
// serves nothing of this package that is not here.
func Endpoints() []string {
	return []string{
		"GET " + PathMembers, "GET " + PathStatus, "GET " + PathJoin, "GET " + PathClassDrift,
		"GET " + PathRaftConfiguration, "DELETE " + PathRaftServers + "/{id}", "POST " + PathTransferLeader,
		"GET " + PathSnapshot, "PUT " + PathSnapshot, "POST " + PathVerify, "POST " + PathSigningKey,
		"GET " + PathEncryption, "POST " + PathEncryptionRewrite, "POST " + PathRevokedNodes + "/{name}",
	}
}

// SnapshotContentType is the type of a snapshot stream in both directions.
const SnapshotContentType = "application/vnd.berth.snapshot"

// Member is one entry of the gossip pool. It is a hint: a member that is shown
// alive may have just died.
type Member struct {
	Name string `json:"name"`
	// Role is "server" or "worker".
	Role string `json:"role"`
	// Status is "alive", "suspect", "failed" or "left".
	Status string `json:"status"`
	// GossipAddress, RPCAddress and HTTPAddress are host:port; a worker has no
	// HTTP address.
	GossipAddress string `json:"gossipAddress"`
	RPCAddress    string `json:"rpcAddress,omitempty"`
	HTTPAddress   string `json:"httpAddress,omitempty"`
	Version       string `json:"version,omitempty"`
	Leader        bool   `json:"leader,omitempty"`
}

// MemberList answers GET PathMembers.
type MemberList struct {
	// Server is the name of the server that answers.
	Server  string   `json:"server"`
	Members []Member `json:"members"`
}

// RevokedNode answers POST PathRevokedNodes/NAME: certificates of the node that are issued until
// then count no more.
type RevokedNode struct {
	Node  string    `json:"node"`
	Until time.Time `json:"until"`
	// Unknown: no node of that name is there.
	Unknown bool `json:"unknown,omitempty"`
}

// Join answers GET PathJoin: what a node has to know to find the others. Nodes alone may ask,
// whose certificate was made by request.
type Join struct {
	// GossipKey is base64; empty: gossip is not encrypted.
	GossipKey string `json:"gossipKey,omitempty"`
	// Gossip and API are addresses of the servers, host:port.
	Gossip []string `json:"gossip"`
	API    []string `json:"api"`
}

// Status answers GET PathStatus: what one server knows of itself.
type Status struct {
	Name      string `json:"name"`
	ID        string `json:"id"`
	ClusterID string `json:"clusterID,omitempty"`
	Version   string `json:"version"`
	// State is "leader", "follower", "candidate" or "learner".
	State string `json:"state"`
	// Leader is the name of the leader; empty if none is known.
	Leader       string `json:"leader,omitempty"`
	Term         uint64 `json:"term"`
	CommitIndex  uint64 `json:"commitIndex"`
	AppliedIndex uint64 `json:"appliedIndex"`
	Revision     int64  `json:"revision"`
	// LogVersion is the version of the rules that the log goes by, and
	// KnownVersion the newest that this server knows.
	LogVersion   int `json:"logVersion,omitempty"`
	KnownVersion int `json:"knownVersion,omitempty"`
	// StateBytes is about what the state takes of memory, and MaxStateBytes what it may take:
	// the least of what the servers allow. Beyond that nothing is taken that makes it grow.
	StateBytes    int64 `json:"stateBytes,omitempty"`
	MaxStateBytes int64 `json:"maxStateBytes,omitempty"`
	// Healthy is false while the server cannot keep what it is given (a full or
	// failing disk, or no leader is known); Message says why.
	Healthy bool   `json:"healthy"`
	Message string `json:"message,omitempty"`
	// Signs: the server has the key of the cluster's CA, and signs requests for certificates while it leads. Absent from
	// servers of versions that do not tell.
	Signs *bool `json:"signs,omitempty"`
	// Unsettled says how the servers' states differ where no majority has the same,
	// and what to do; all serve on.
	Unsettled string `json:"unsettled,omitempty"`
	// Clock is what the server's clocks show.
	Clock Clock `json:"clock"`
	// ApplyFailures are the newest commands that made the state machine panic,
	// newest first. They were undone and refused, on every server alike.
	ApplyFailures []ApplyFailure `json:"applyFailures,omitempty"`
}

// Clock is a server's clock beside those of the others.
type Clock struct {
	// Known: a majority of the voters has told what its clock shows.
	Known bool `json:"known"`
	// OffsetNano is this server's wall clock less the time of day as the voters have
	// it, in nanoseconds.
	OffsetNano int64 `json:"offsetNano"`
	// StateAheadNano is the state's time less the time of day, in nanoseconds.
	StateAheadNano int64 `json:"stateAheadNano"`
	// Astray: the clock is off that of a majority by more than MaxOffsetNano. The
	// server does not lead.
	Astray        bool  `json:"astray,omitempty"`
	MaxOffsetNano int64 `json:"maxOffsetNano"`
}

// ApplyFailure is a command, or a part of one, that could not be carried out
// because of a mistake in Berth.
type ApplyFailure struct {
	// Index is that of the log entry.
	Index   uint64 `json:"index"`
	Command string `json:"command"`
	// Part names what the failed part was about; empty if it was the whole.
	Part string `json:"part,omitempty"`
	User string `json:"user,omitempty"`
	// TimeUnixNano is the state's time.
	TimeUnixNano int64 `json:"timeUnixNano"`
}

// RaftServer is one server of the consensus group.
type RaftServer struct {
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	Address string `json:"address"`
	// Suffrage is "voter" or "nonvoter".
	Suffrage string `json:"suffrage"`
	Leader   bool   `json:"leader,omitempty"`
	// LastIndex is the last index of the server's log, as it has said last; zero if
	// it has never answered.
	LastIndex uint64 `json:"lastIndex,omitempty"`
	// Healthy: the server answers the one that was asked, or the leader's
	// heartbeats reach it.
	Healthy *bool  `json:"healthy,omitempty"`
	Version string `json:"version,omitempty"`
	// ClockOffsetNano is its wall clock less that of the server that was asked, in
	// nanoseconds; absent if it has never answered.
	ClockOffsetNano *int64 `json:"clockOffsetNano,omitempty"`
	// Message says why it does not answer.
	Message string `json:"message,omitempty"`
}

// RaftConfiguration answers GET PathRaftConfiguration.
type RaftConfiguration struct {
	// Server is the one that answers.
	Server string `json:"server"`
	// Index is the log index of the configuration.
	Index   uint64       `json:"index"`
	Term    uint64       `json:"term"`
	Servers []RaftServer `json:"servers"`
	// Message says why there are none.
	Message string `json:"message,omitempty"`
}

// TransferLeaderRequest is the body of POST PathTransferLeader.
type TransferLeaderRequest struct {
	// ID of the server that is to lead; empty: the one that is furthest.
	ID string `json:"id,omitempty"`
}

// TransferLeaderResult answers POST PathTransferLeader.
type TransferLeaderResult struct {
	From string `json:"from"`
	To   string `json:"to,omitempty"`
}

// RestoreResult answers PUT PathSnapshot.
type RestoreResult struct {
	// Index is the log index that the restored state stands at.
	Index uint64 `json:"index"`
	// Revision is the restored state's revision.
	Revision int64 `json:"revision"`
}

// VerifyServer is one server's digest.
type VerifyServer struct {
	Name   string `json:"name"`
	Digest string `json:"digest,omitempty"`
	// Error says why there is no digest.
	Error string `json:"error,omitempty"`
}

// SigningKeyRequest is the body of POST PathSigningKey: a new key signs the
// tokens of service accounts from now on.
type SigningKeyRequest struct {
	// Revoke: no token that was made before is good any more.
	Revoke bool `json:"revoke,omitempty"`
}

// SigningKeyResult answers it.
type SigningKeyResult struct {
	// ID is what tokens call the new key.
	ID string `json:"id"`
}

// EncryptionStatus answers GET PathEncryption: what is encrypted in the state, with which keys, as the
// server that answers can open it.
type EncryptionStatus struct {
	Server string `json:"server"`
	// File is the server's encryption configuration; empty: it has none. Fingerprint tells it from others.
	File        string `json:"file,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	// Revision of the state that the answer is read from.
	Revision int64               `json:"revision"`
	Holdings []EncryptionHolding `json:"holdings"`
}

// EncryptionHolding is what of one resource is encrypted with one key, or in clear.
type EncryptionHolding struct {
	Resource string `json:"resource"`
	Key      string `json:"key"`
	Objects  int    `json:"objects"`
	// Stale are those that would be written with another key by now.
	Stale int `json:"stale,omitempty"`
	// Problem says why the server cannot open them.
	Problem string `json:"problem,omitempty"`
}

// EncryptionRewrite answers POST PathEncryptionRewrite: what was stale is written with the key that writes now,
// a few hundred objects a request.
type EncryptionRewrite struct {
	Rewritten int `json:"rewritten"`
	// Overtaken were changed by others meanwhile.
	Overtaken int `json:"overtaken,omitempty"`
	// SigningKey: a new key signs the tokens of service accounts.
	SigningKey bool `json:"signingKey,omitempty"`
	// More: there may be others; ask again.
	More bool `json:"more,omitempty"`
}

// VerifyResult answers POST PathVerify: the digests of all servers' states at
// one and the same log index.
type VerifyResult struct {
	Revision int64          `json:"revision"`
	Index    uint64         `json:"index"`
	Servers  []VerifyServer `json:"servers"`
	// Equal is true if every server answered and all digests are the same.
	Equal bool `json:"equal"`
	// Message says what to do where no majority of the voters has the same.
	Message string `json:"message,omitempty"`
}

// ClassDrift lists the pods whose priority is not that of the class they name,
// because the class was deleted, or deleted and made again with another value.
type ClassDrift struct {
	// Revision of the state that the answer is read from.
	Revision int64      `json:"revision"`
	Pods     []DriftPod `json:"pods"`
	// More is true if there are more pods than are listed.
	More bool `json:"more,omitempty"`
}

// DriftPod is a pod apart from its class.
type DriftPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Class     string `json:"class"`
	Priority  int32  `json:"priority"`
	// ClassValue is the class's value now; absent if there is no such class.
	ClassValue *int32 `json:"classValue,omitempty"`
}
