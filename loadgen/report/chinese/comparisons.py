"""Runs side by side: what differs at which load, the conditions, what to know of a comparison."""

COMPARISONS: dict[str, str] = {
    "output throughput": "输出吞吐量",
    "output throughput at {load:said}": "{load} 下的输出吞吐量",
    "{m} at {load:said}": "{load} 下的 {m}",
    "output throughput over {n} loads together": "{n} 个负载合计的输出吞吐量",
    "{m} over {n} loads together": "{n} 个负载合计的 {m}",
    "all loads": "全部负载",
    "a load of {n}": "负载 {n}",
    "the load that was not told": "未知负载",
    # notes
    "no load was measured by both {one} and {two}: measure {other} with --levels as A's, or the same -c": (
        "{one} 与 {two} 没有共同测量的负载：用与 A 相同的 --levels 或 -c 测量 {other}"
    ),
    "only {run} measured {loads:list}: left out": "仅 {run} 测量了 {loads}：未纳入",
    "at {load:said} the lengths differ; {share} of the requests are of lengths both have, {how:said}": (
        "负载 {load} 下长度不同；{share} 的请求长度为双方共有，{how}"
    ),
    "weighted to A's mix": "已按 A 的长度构成加权",
    "too little for a comparison at equal lengths: taken as they are": "不足以在同等长度下比较：按原样采用",
    "at {load:said} {why:list}: these intervals promise too much; loadgen check --pairs 8 URL_A URL_B measures in"
    " turn": ("负载 {load} 下出现{why}：其置信区间偏窄；loadgen check --pairs 8 URL_A URL_B 可交替测量"),
    # conditions
    "target": "目标地址",
    "model": "模型",
    "precision": "精度",
    "server version": "服务器版本",
    "server flags": "服务器参数",
    "context length": "上下文长度",
    "sampling": "采样参数",
    "completion": "结束条件",
    "workload": "工作负载",
    "concurrency": "并发",
    "seed": "随机种子",
    "client": "客户端",
    "metric definitions": "指标定义",
    "searched": "由搜索选定",
    "simulated": "模拟",
    "all=server default": "全部为服务器默认",
}
