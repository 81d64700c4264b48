# One of three servers. The other two differ in name, bind_addr, cert_file and
# key_file only. docs/operations.md tells how the certificates are made.

name      = "server-1"
data_dir  = "/var/lib/berth"
bind_addr = "10.0.0.1"
join      = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]

server {
  enabled          = true
  bootstrap_expect = 3
}

gossip {
  encryption_key = "make one with: berth operator gossip-key"
}

tls {
  ca_file   = "/etc/berth/tls/ca.pem"
  cert_file = "/etc/berth/tls/server-server-1.pem"
  key_file  = "/etc/berth/tls/server-server-1-key.pem"
}
