//! A diagnostic: the sockets and processes that use the RoCE port (UDP 4791) of this machine's
//! addresses.

use std::fs;
use std::net::IpAddr;

use mitra_wire::ROCE_PORT;

/// A socket that is bound to the RoCE port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RocePortUser {
    /// The address that the socket is bound to. The unspecified address means all addresses.
    pub address: IpAddr,
    inode: u64,
}

impl RocePortUser {
    /// Describes the process that has the socket open. Reads `/proc`, which hides the sockets of
    /// other users' processes.
    pub fn process(&self) -> String {
        let link = format!("socket:[{}]", self.inode);
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let mut fds = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
            if fds.any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target.as_os_str() == link.as_str()))
            {
                if pid == std::process::id() {
                    return "this process itself".to_owned();
                }
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                return format!("process {pid} ({})", name.trim());
            }
        }
        "a process of another user, or the kernel itself (rdma_rxe)".to_owned()
    }
}

/// Returns the sockets of this network namespace that are bound to the RoCE port.
pub fn roce_port_users() -> Vec<RocePortUser> {
    let tables = ["/proc/self/net/udp", "/proc/self/net/udp6"].map(fs::read_to_string);
    let lines = tables.iter().flatten().flat_map(|table| table.lines().skip(1));
    lines.filter_map(parse_roce_socket).collect()
}

/// Describes the process whose socket is bound to the RoCE port of `address` or of all addresses.
pub(crate) fn describe_process_using(address: IpAddr) -> String {
    let covers = |user: &RocePortUser| user.address == address || user.address.is_unspecified();
    let users = roce_port_users();
    users.iter().find(|user| covers(user)).map_or_else(|| "another process".to_owned(), RocePortUser::process)
}

/// Parses a line of `/proc/net/udp` or `/proc/net/udp6` (`proc(5)`). Returns `None` if the line is
/// malformed or the port is not the RoCE port.
fn parse_roce_socket(line: &str) -> Option<RocePortUser> {
    let mut fields = line.split_ascii_whitespace();
    let (ip, port) = fields.nth(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != ROCE_PORT {
        return None;
    }
    // The kernel prints each 32-bit word of an address in host byte order.
    let word =
        |index: usize| Some(u32::from_str_radix(ip.get(index * 8..index * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let address = match ip.len() {
        8 => IpAddr::from(word(0)?),
        _ => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            IpAddr::from(<[u8; 16]>::try_from(words.as_flattened()).ok()?)
        }
    };
    Some(RocePortUser { address, inode: fields.nth(7)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_net_udp_line_parses_to_address_and_inode() {
        let line = " 1234: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 98765 2 0 0";
        let user = |address: &str| Some(RocePortUser { address: address.parse().unwrap(), inode: 98765 });
        assert_eq!(parse_roce_socket(line), user("127.0.0.1"));
        assert_eq!(parse_roce_socket(&line.replace("0100007F", "00000000")), user("0.0.0.0"));
        assert_eq!(
            parse_roce_socket(&line.replace("0100007F", "000000FD000000000000000002000000")),
            user("fd00::2")
        );
        assert_eq!(parse_roce_socket(&line.replace("12B7", "12B8")), None);
    }
}
