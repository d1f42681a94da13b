"""Single words that stand where a figure has none: units, states, what a condition or a run's end is called."""

TERMS: dict[str, str] = {
    # units
    "ms a token": "ms/token",
    "tokens/s": "token/s",
    "tokens": "token",
    "requests/s": "请求/秒",
    # steadiness
    "drift": "漂移",
    "stalls": "停顿",
    "lockstep": "锁步",
    # where a server tells its cached tokens
    "usage": " usage",
    "metrics": "指标",
    # stamps
    "kernel": "内核",
    "user": "用户态",
    "kernel stamps": "内核时间戳",
    "user stamps": "用户态时间戳",
    "user stamps, taken as each read returns": "用户态时间戳（每次读取返回时）",
    "this machine carries {n} what this run needed (calibrated {day:any})": (
        "本机能力为本次运行所需的 {n}（校准于 {day}）"
    ),
    "this machine carries at least {n} what this run needed (calibrated {day:any})": (
        "本机能力至少为本次运行所需的 {n}（校准于 {day}）"
    ),
    "this run needed {n} what this machine carries (calibrated {day:any})": (
        "本次运行所需为本机能力的 {n}（校准于 {day}）"
    ),
    "this run needed {n} what this machine has been seen to carry (calibrated {day:any})": (
        "本次运行所需为本机已验证能力的 {n}（校准于 {day}）"
    ),
    "{day} with {n} streams": "{day}，{n} 路并发流",
    # the workload
    "made text": "生成的文本",
    "in {lengths:said}": "输入 {lengths}",
    "out {lengths:said}": "输出 {lengths}",
    "{n} prompt(s)": "{n} 条提示",
    "{size} GB, the first {n} prompts looked at": "{size} GB，已查看前 {n} 条提示",
    "as the server likes": "由服务器决定",
    "models {name}={shares}": "模型 {name}={shares}",
    "{name} (a run again)": "{name}（重放一次运行）",
    "{n} requests in {t} s": "{t} s 内 {n} 个请求",
    "{n} requests in {t} s, {x} times as fast": "{t} s 内 {n} 个请求，{x} 倍速",
    "the first {n} requests in {t} s": "{t} s 内的前 {n} 个请求",
    "the first {n} requests in {t} s, {x} times as fast": "{t} s 内的前 {n} 个请求，{x} 倍速",
    "{n} tokens shared by all": "所有请求共享 {n} 个 token",
    "{n} tokens shared in {groups} groups": "{groups} 组各共享 {n} 个 token",
    "{n} tokens shared in {groups} groups by Zipf's law {s}": "{groups} 组（Zipf {s}）各共享 {n} 个 token",
    "{n} tokens shared by all, {rest:said}": "所有请求共享 {n} 个 token，{rest}",
    "sessions of {turns:said} turns, {more:said} more in, {rest:said}": (
        "会话：{turns} 轮，每轮新增输入 {more}，{rest}"
    ),
    "{lengths:said} out, {rest:said}": "输出 {lengths}，{rest}",
    "think {times:said} ms, {rest:said}": "思考 {times} ms，{rest}",
    "history as answered": "历史为实际回答",
    "history made": "历史为生成的文本",
    "normal, mean {m}, std {s}": "正态分布（均值 {m}，标准差 {s}）",
    "lognormal, mu {m}, sigma {s}": "对数正态分布（mu {m}，sigma {s}）",
    "weibull, shape {k}, scale {s}": "韦布尔分布（shape {k}，scale {s}）",
    "gamma, shape {k}, scale {s}": "伽马分布（shape {k}，scale {s}）",
    "quantiles, {a} to {b}, the middle {m}": "分位数 {a} 至 {b}，中位 {m}",
    # how a run stands
    "running": "运行中",
    "complete": "完成",
    "interrupted": "已中断",
    "failed": "失败",
    "imported": "导入",
    # why it ended
    "slo:{name}": "违反目标 {name}",
    "slo": "违反目标",
    "plateau": "吞吐量不再增长",
    "over_saturated": "吞吐量连续下降（过饱和）",
    "max_level": "已测完所有要求的负载",
    "no_sample": "目标没有样本，无法判定",
    "no_sample:{name}": "目标 {name} 没有样本（回答只有一个 token，或未以流式返回），无法判定",
    "errors": "失败过多",
    "errors:admission_limit": "服务器的准入限制",
    "client_bound": "客户端是瓶颈",
    "unreachable": "服务器无法访问",
    "unstable": "请求堆积（不稳定）",
    "budget": "预算用尽",
    "budget:time": "时间预算用尽",
    "budget:requests": "请求数预算用尽",
    "budget:tokens": "token 预算用尽",
    "budget:cost": "费用预算用尽",
    "budget:{name}": "{name} 预算用尽",
    # the machine
    "implementation": "实现",
    "system": "系统",
    "release": "内核版本",
    "machine": "架构",
    "cpus": "CPU 数",
    "cpus_usable": "可用 CPU 数",
    "open_files": "打开文件上限",
}
